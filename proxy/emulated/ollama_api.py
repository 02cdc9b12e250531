"""The HTTP API of an emulated Ollama: its routes, and how a request gets its model, its slot and its answer.

Must not know how slots are chosen or which model is evicted.
"""

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from proxy.emulated.answers import StreamAnswer, StreamForm, WholeAnswer
from proxy.emulated.engine import SlotEngine
from proxy.emulated.faults import Fault
from proxy.emulated.go_values import read_object
from proxy.emulated.jobs import Job, Problem
from proxy.emulated.ollama_catalog import must_find, openai_model, openai_models, ps, show, tags
from proxy.emulated.ollama_frames import NativeForm, Told, load_record
from proxy.emulated.ollama_heads import (
    EVENTS,
    JSON,
    NAMED_EVENTS,
    NDJSON,
    PLAIN_JSON,
    OllamaError,
    go_json,
    send,
    send_error,
)
from proxy.emulated.ollama_models import Models, Use
from proxy.emulated.ollama_requests import (
    Asked,
    check_model,
    prompt_tokens,
    read_anthropic,
    read_chat,
    read_generate,
    read_openai_chat,
    read_openai_completion,
    read_responses,
    wish_of,
)
from proxy.emulated.ollama_responses import ResponsesForm
from proxy.emulated.ollama_v1 import AnthropicForm, OpenAiChatForm, OpenAiCompletionForm
from proxy.emulated.ollama_vectors import OllamaVectors
from proxy.emulated.options import EmulatedModel, Options
from proxy.emulated.prompts import content_text
from proxy.emulated.replies import plan_reply
from proxy.emulated.wire import Exchange, Headers
from proxy.tasks import Tasks

CHILD_DIED = "an error was encountered while running the model: unexpected EOF"
_ALLOWED_HEADERS = "Authorization,Content-Type,User-Agent,Accept,X-Requested-With"
Route = Callable[[Exchange, Fault | None], Awaitable[None]]


class Form(StreamForm, Protocol):
    """A form of answer, streamed or whole."""

    def whole(self, job: Job) -> bytes:
        """The answer in one piece."""


class OllamaApi:
    """Ollama's API in front of its models' slot engines."""

    inference = frozenset(
        {
            "/api/generate",
            "/api/chat",
            "/api/embed",
            "/api/embeddings",
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/embeddings",
            "/v1/responses",
            "/v1/messages",
        }
    )

    def __init__(self, options: Options) -> None:
        self.options = options
        self.models = Models(options)
        self._tasks = Tasks()
        vectors = OllamaVectors(self.models, self._use)
        self._routes: dict[str, dict[str, Route]] = {
            "/": dict.fromkeys(("GET", "HEAD"), self._root),
            "/api/version": dict.fromkeys(("GET", "HEAD"), self._version),
            "/api/tags": dict.fromkeys(("GET", "HEAD"), self._tags),
            "/api/ps": {"GET": self._ps},
            "/api/status": {"GET": self._status},
            "/api/show": {"POST": self._show},
            "/api/copy": {"POST": self._copy},
            "/api/delete": {"DELETE": self._delete},
            "/api/chat": {"POST": self._chat},
            "/api/generate": {"POST": self._generate},
            "/api/embed": {"POST": vectors.embed},
            "/api/embeddings": {"POST": vectors.embeddings},
            "/v1/models": {"GET": self._openai_models},
            "/v1/models/*": {"GET": self._openai_model},
            "/v1/chat/completions": {"POST": self._openai_chat},
            "/v1/completions": {"POST": self._openai_completion},
            "/v1/embeddings": {"POST": vectors.openai},
            "/v1/responses": {"POST": self._responses},
            "/v1/messages": {"POST": self._anthropic},
        }

    async def start(self) -> None:
        """Nothing: models are loaded when they are asked for."""

    async def close(self) -> None:
        """Unload everything."""
        await self._tasks.close()
        await self.models.close()

    def engines(self) -> list[SlotEngine]:
        """Of every loaded model."""
        return [loaded.engine for loaded in self.models.loaded.values()]

    def loading(self, exchange: Exchange) -> None:
        """Answer that too many requests wait for loads."""
        message = "server busy, please try again.  maximum pending requests exceeded"
        send_error(exchange, OllamaError(503, message))

    def broken(self, exchange: Exchange, message: str) -> None:
        """Answer with an internal error."""
        send_error(exchange, OllamaError(500, message))

    async def respond(self, exchange: Exchange, fault: Fault | None) -> None:
        """Answer one request."""
        origin = exchange.headers.get("origin", "")
        if not _known_host(exchange.headers.get("host", "")) or (origin and not _known_host(origin.partition("//")[2])):
            exchange.whole(403, [], b"")
            return
        if exchange.method == "OPTIONS" and origin:
            self._preflight(exchange)
            return
        path = "/v1/models/*" if exchange.path.startswith("/v1/models/") else exchange.path
        routes = self._routes.get(path)
        if routes is None:
            exchange.whole(404, [("Content-Type", "text/plain")], b"404 page not found")
            return
        route = routes.get(exchange.method)
        if route is None:
            allowed = [("Allow", ", ".join(routes)), ("Content-Type", "text/plain")]
            exchange.whole(405, allowed, b"405 method not allowed")
            return
        try:
            await route(exchange, fault)
        except OllamaError as error:
            send_error(exchange, error)

    def _preflight(self, exchange: Exchange) -> None:
        headers = [
            ("Access-Control-Allow-Headers", _ALLOWED_HEADERS),
            ("Access-Control-Allow-Methods", "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS"),
            ("Access-Control-Max-Age", "43200"),
            ("Allow", ", ".join(self._routes.get(exchange.path, {"POST": None}))),
            ("Vary", "Access-Control-Request-Method"),
            ("Vary", "Access-Control-Request-Headers"),
        ]
        exchange.whole(204, headers, b"")

    # -- state

    async def _root(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        exchange.whole(200, [("Content-Type", "text/plain; charset=utf-8")], b"Ollama is running")

    async def _version(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        send(exchange, go_json({"version": self.options.version}))

    async def _status(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        send(exchange, go_json({"cloud": {"disabled": True, "source": "env"}}))

    async def _tags(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        send(exchange, go_json(tags(self.models)))

    async def _ps(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        send(exchange, go_json(ps(self.models)))

    async def _show(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        body = read_object(exchange.body, "api.ShowRequest")
        model = must_find(self.models, body.get("model") or body.get("name"), tagged=True)
        send(exchange, go_json(show(self.models, model)))

    async def _openai_models(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        send(exchange, go_json(openai_models(self.models)) + b"\n", headers=PLAIN_JSON)

    async def _openai_model(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        name = exchange.path.removeprefix("/v1/models/")
        must_find(self.models, name, tagged=True)
        send(exchange, go_json(openai_model(self.models, name)) + b"\n", headers=PLAIN_JSON)

    async def _copy(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        body = read_object(exchange.body, "api.CopyRequest")
        self.models.copy(must_find(self.models, body.get("source"), quote='"'), str(body.get("destination")))
        exchange.whole(200, [], b"")

    async def _delete(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        body = read_object(exchange.body, "api.DeleteRequest")
        self.models.remove(must_find(self.models, body.get("model") or body.get("name")))
        exchange.whole(200, [], b"")

    # -- text

    async def _chat(self, exchange: Exchange, fault: Fault | None) -> None:
        await self._answer(
            exchange, fault, read_chat(exchange.body), NDJSON, lambda told, _: NativeForm(told, chat=True)
        )

    async def _generate(self, exchange: Exchange, fault: Fault | None) -> None:
        asked = read_generate(exchange.body)
        context = not asked.body.get("raw")
        await self._answer(
            exchange, fault, asked, NDJSON, lambda told, _: NativeForm(told, chat=False, context=context)
        )

    async def _openai_chat(self, exchange: Exchange, fault: Fault | None) -> None:
        asked = read_openai_chat(exchange.body)
        usage = _wants_usage(asked)
        await self._answer(exchange, fault, asked, EVENTS, lambda told, _: OpenAiChatForm(told, usage=usage))

    async def _openai_completion(self, exchange: Exchange, fault: Fault | None) -> None:
        asked = read_openai_completion(exchange.body)
        usage = _wants_usage(asked)
        await self._answer(exchange, fault, asked, EVENTS, lambda told, _: OpenAiCompletionForm(told, usage=usage))

    async def _responses(self, exchange: Exchange, fault: Fault | None) -> None:
        asked = read_responses(exchange.body)
        most, instructions = asked.body.get("max_output_tokens"), asked.body.get("instructions")
        await self._answer(
            exchange, fault, asked, NAMED_EVENTS, lambda told, _: ResponsesForm(told, most, instructions)
        )

    async def _anthropic(self, exchange: Exchange, fault: Fault | None) -> None:
        asked = read_anthropic(exchange.body)
        await self._answer(exchange, fault, asked, NAMED_EVENTS, lambda told, _: AnthropicForm(told))

    async def _answer(
        self,
        exchange: Exchange,
        fault: Fault | None,
        asked: Asked,
        stream_headers: Headers,
        make_form: Callable[[Told, Asked], Form],
    ) -> None:
        begin_s = time.monotonic()
        model = must_find(self.models, asked.model)
        if asked.empty and asked.keep_alive_s == 0:
            self.models.expire(model)
            send(exchange, load_record(asked.model, "unload", chat=asked.chat))
            return
        check_model(asked, model)
        use = await self._use(exchange, model, asked.runner, asked.keep_alive_s)
        if use is None:
            return
        if asked.empty:
            self.models.release(use.loaded)
            send(exchange, load_record(asked.model, "load", chat=asked.chat))
            return
        exchange.on_ended.append(lambda: self.models.release(use.loaded))
        tokens = prompt_tokens(asked, use.loaded.context)
        estimate = sum(len(content_text(message.get("content"))) for message in asked.messages) // 4
        form = make_form(Told(asked.model, use.waited_s, begin_s, max(1, estimate)), asked)
        most = asked.most if asked.most >= 0 else 10 * use.loaded.context
        answer = self._sink(exchange, fault, asked, use, stream_headers, form)
        reply = plan_reply(tokens, wish_of(asked, self.options), max(1, most))
        job = Job(tokens, reply, answer, most=most, streams=True, leaves_queue_at_once=True, params={"most": most})
        answer.run([job])

    def _sink(
        self,
        exchange: Exchange,
        fault: Fault | None,
        asked: Asked,
        use: Use,
        stream_headers: Headers,
        form: Form,
    ) -> StreamAnswer | WholeAnswer:
        v1 = exchange.path.startswith("/v1/")

        def refuse(problem: Problem) -> None:
            send_error(exchange, OllamaError(problem.status, problem.message))

        def broken(problem: Problem) -> bytes:
            if isinstance(form, NativeForm):
                return go_json({"error": problem.message}) + b"\n"
            return form.broken() if isinstance(form, OpenAiChatForm) else b""

        def reply(jobs: list[Job]) -> None:
            send(exchange, form.whole(jobs[0]) + (b"\n" if v1 else b""), headers=PLAIN_JSON if v1 else JSON)

        answer: StreamAnswer | WholeAnswer
        if asked.stream:
            answer = StreamAnswer(
                exchange, use.loaded.engine, fault, headers=stream_headers, form=form, refuse=refuse, broken=broken
            )
        else:
            answer = WholeAnswer(exchange, use.loaded.engine, fault, reply=reply, refuse=refuse)
        answer.child_dies = lambda: self._child_dies(use)
        return answer

    def _child_dies(self, use: Use) -> None:
        self.models.child_died(use.loaded)
        use.loaded.engine.fail_all(Problem(500, "child", CHILD_DIED))

    async def _use(
        self, exchange: Exchange, model: EmulatedModel, runner: dict[str, Any], keep_alive_s: float | None
    ) -> Use | None:
        """Hold the model. A client that leaves gives up its wait, and the load if it was for it. None: it has left."""
        waiting = self._tasks.start(self.models.use(model, runner, keep_alive_s), "emulated load")

        def give_up() -> None:
            waiting.cancel()

        exchange.on_gone = give_up
        if exchange.gone:
            give_up()
        try:
            use: Use = await waiting
        except asyncio.CancelledError:
            exchange.abort()
            if not exchange.gone:
                raise
            return None
        finally:
            exchange.on_gone = None
        return use


def _wants_usage(asked: Asked) -> bool:
    return bool((asked.body.get("stream_options") or {}).get("include_usage"))


def _known_host(authority: str) -> bool:
    """Whether a Host header is one that Ollama, bound to loopback, lets in: an own name or a private address."""
    name = authority.partition("]")[0].removeprefix("[") if authority.startswith("[") else authority.partition(":")[0]
    if not name or name == "localhost" or name.endswith((".localhost", ".local", ".internal")):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_private or address.is_unspecified
