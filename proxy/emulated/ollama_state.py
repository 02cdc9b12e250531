"""The routes of an emulated Ollama that tell of itself and change nothing. Must not know loads or slots.

/api/ps hangs while a model is loaded or unloaded, as the real one does behind its locks.
"""

from proxy.emulated.faults import Fault
from proxy.emulated.go_values import read_object
from proxy.emulated.ollama_catalog import must_find, openai_model, openai_models, ps, show, tags
from proxy.emulated.ollama_heads import PLAIN_JSON, go_json, send
from proxy.emulated.ollama_models import Models
from proxy.emulated.wire import Exchange


class OllamaState:
    """What can be asked."""

    def __init__(self, models: Models) -> None:
        self._models, self._store, self._options = models, models.store, models.options

    async def root(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """GET and HEAD /."""
        exchange.whole(200, [("Content-Type", "text/plain; charset=utf-8")], b"Ollama is running")

    async def version(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """GET and HEAD /api/version."""
        send(exchange, go_json({"version": self._options.version}))

    async def status(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """GET /api/status."""
        cloud = self._options.cloud
        send(exchange, go_json({"cloud": {"disabled": not cloud, "source": "none" if cloud else "env"}}))

    async def tags(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """GET and HEAD /api/tags."""
        send(exchange, go_json(tags(self._store)))

    async def ps(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """GET /api/ps."""
        await self._models.settled()
        send(exchange, go_json(ps(self._models)))

    async def show(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """POST /api/show."""
        body = read_object(exchange.body, "api.ShowRequest")
        model = must_find(self._store, body.get("model") or body.get("name"), tagged=True)
        send(exchange, go_json(show(self._store, model)))

    async def openai_models(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """GET /v1/models."""
        send(exchange, go_json(openai_models(self._store)) + b"\n", headers=PLAIN_JSON)

    async def openai_model(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """GET /v1/models/NAME."""
        name = exchange.path.removeprefix("/v1/models/")
        model = must_find(self._store, name, tagged=True)
        send(exchange, go_json(openai_model(model, name)) + b"\n", headers=PLAIN_JSON)
