"""The HTTP API of an emulated Ollama: its routes, and how a request gets its model, its slot and its answer.

Must not know how slots are chosen or which model is evicted.
"""

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from proxy.emulated.answers import StreamAnswer, StreamForm, WholeAnswer
from proxy.emulated.engine import Departure, SlotEngine
from proxy.emulated.faults import Fault, Faults
from proxy.emulated.jobs import Job, Problem
from proxy.emulated.ollama_catalog import must_find
from proxy.emulated.ollama_children import Children
from proxy.emulated.ollama_files import MemoryFiles
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
from proxy.emulated.ollama_loaded import LoadCounts, Loaded
from proxy.emulated.ollama_models import BUSY, Models, Use
from proxy.emulated.ollama_names import is_cloud
from proxy.emulated.ollama_registry import Registry
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
from proxy.emulated.ollama_runner import Shape
from proxy.emulated.ollama_state import OllamaState
from proxy.emulated.ollama_store import Store, StoredModel
from proxy.emulated.ollama_store_routes import StoreRoutes
from proxy.emulated.ollama_v1 import AnthropicForm, OpenAiChatForm, OpenAiCompletionForm
from proxy.emulated.ollama_vectors import OllamaVectors
from proxy.emulated.options import EmulatedModel, Options
from proxy.emulated.prompts import content_text
from proxy.emulated.replies import plan_reply
from proxy.emulated.wire import Exchange, Headers
from proxy.tasks import Tasks

_CLOUD_SLOTS = 64
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

    def __init__(self, options: Options, store: Store, counts: LoadCounts, faults: Faults) -> None:
        self.options = options
        self.children = Children(store.place, metrics_on=options.child_metrics) if options.children else None
        spawn = self.children.spawn if self.children is not None else None
        self.models = Models(options, store, counts, spawn=spawn, fails=faults.load_fails)
        self._store = store
        self._tasks = Tasks()
        self._cloud: Loaded | None = None
        vectors = OllamaVectors(self.models, self._use)
        state = OllamaState(self.models)
        registry = Registry(store, options.registry, options.registry_bytes_per_s, prunes=options.prunes)
        self._changes = StoreRoutes(store, registry, partial(must_find, store), cloud=options.cloud)
        changes = self._changes
        self._routes: dict[str, dict[str, Route]] = {
            "/": dict.fromkeys(("GET", "HEAD"), state.root),
            "/api/version": dict.fromkeys(("GET", "HEAD"), state.version),
            "/api/tags": dict.fromkeys(("GET", "HEAD"), state.tags),
            "/api/ps": {"GET": state.ps},
            "/api/status": {"GET": state.status},
            "/api/show": {"POST": state.show},
            "/api/copy": {"POST": changes.copy},
            "/api/delete": {"DELETE": changes.delete},
            "/api/pull": {"POST": changes.pull},
            "/api/push": {"POST": changes.push},
            "/api/create": {"POST": changes.create},
            "/api/blobs/*": dict.fromkeys(("HEAD", "POST"), changes.blob),
            "/api/me": {"POST": changes.me},
            "/api/signout": {"POST": changes.sign_out},
            "/api/user/keys/*": {"DELETE": changes.sign_out},
            "/api/experimental/web_search": {"POST": changes.web},
            "/api/experimental/web_fetch": {"POST": changes.web},
            "/api/experimental/model-recommendations": {"GET": changes.recommendations},
            "/api/chat": {"POST": self._chat},
            "/api/generate": {"POST": self._generate},
            "/api/embed": {"POST": vectors.embed},
            "/api/embeddings": {"POST": vectors.embeddings},
            "/v1/models": {"GET": state.openai_models},
            "/v1/models/*": {"GET": state.openai_model},
            "/v1/chat/completions": {"POST": self._openai_chat},
            "/v1/completions": {"POST": self._openai_completion},
            "/v1/embeddings": {"POST": vectors.openai},
            "/v1/responses": {"POST": self._responses},
            "/v1/messages": {"POST": self._anthropic},
        }

    async def start(self) -> None:
        """Nothing: models are loaded when they are asked for."""

    def orphan(self) -> None:
        """Die as by SIGKILL: the children live on."""
        self.models.freeze()
        if self.children is not None:
            self.children.let_go()

    async def close(self) -> None:
        """Unload everything, and end every child."""
        await self._tasks.close()
        await self._changes.close()
        await self.models.close()
        if self._cloud is not None:
            await self._cloud.engine.close()
        if self.children is not None:
            self.children.close()

    def engines(self) -> list[SlotEngine]:
        """Of every loaded model."""
        return [loaded.engine for loaded in self.models.loaded.values()]

    def loading(self, exchange: Exchange) -> None:
        """Answer that too many requests wait for loads."""
        send_error(exchange, OllamaError(503, BUSY))

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
        routes = self._routes.get(exchange.path) or self._routes.get(f"{exchange.path.rpartition('/')[0]}/*")
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
        if is_cloud(asked.model):
            use: Use | None = Use(self._cloud_model(asked.model), 0.0, None)
        else:
            model = must_find(self._store, asked.model)
            if asked.empty and asked.keep_alive_s == 0:
                self.models.expire(model)
                send(exchange, load_record(asked.model, "unload", chat=asked.chat))
                return
            check_model(asked, model)
            use = await self._use(exchange, model, asked.runner, asked.keep_alive_s)
        if use is None:
            return
        if asked.empty:
            use.release()
            send(exchange, load_record(asked.model, "load", chat=asked.chat))
            return
        exchange.on_ended.append(use.release)
        tokens = prompt_tokens(asked, use.loaded.context)
        estimate = sum(len(content_text(message.get("content"))) for message in asked.messages) // 4
        form = make_form(Told(asked.model, use.waited_s, begin_s, max(1, estimate), asked.logprobs), asked)
        most = asked.most if asked.most >= 0 else 10 * use.loaded.context
        answer = self._sink(exchange, fault, asked, use, stream_headers, form)
        reply = plan_reply(tokens, wish_of(asked, self.options), max(1, most))
        params = {**asked.options, "most": most, "stream": True, "n_keep": 4, "top_p": asked.options.get("top_p", 0.9)}
        job = Job(
            tokens,
            reply,
            answer,
            most=most,
            streams=True,
            leaves_queue_at_once=True,
            params={"seed": 0, "min_p": 0.0, **params},
        )
        answer.let_go = use.release
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
        self.models.kill_child(use.loaded)

    def _cloud_model(self, name: str) -> Loaded:
        """Whoever answers at ollama.com: no load, and as many slots as one wants.

        Raises:
            OllamaError: nobody is signed in.
        """
        if not self.options.cloud:
            raise OllamaError(403, "ollama cloud is disabled: remote inference is unavailable")
        if self._cloud is None:
            context = self.options.context
            settings = self.options.settings(slots=_CLOUD_SLOTS, context=context)
            engine = SlotEngine(settings, speed=self.options.speed, departure=Departure.PROMPT)
            facts = EmulatedModel(name, ("completion", "tools", "thinking"))
            store = Store(MemoryFiles())
            store.provide(facts)
            self._cloud = Loaded(store.models()[0], Shape(context, _CLOUD_SLOTS, settings.batch), engine)
        return self._cloud

    async def _use(
        self, exchange: Exchange, model: StoredModel, runner: dict[str, Any], keep_alive_s: float | None
    ) -> Use | None:
        """Hold the model. A client that leaves gives up its wait, and the load if it was for it. None: it has left."""
        waiting = self._tasks.start(_caught(self.models.use(model, runner, keep_alive_s)), "emulated load")

        def give_up() -> None:
            waiting.cancel()

        exchange.on_gone = give_up
        if exchange.gone:
            give_up()
        try:
            use: Use | OllamaError = await waiting
        except asyncio.CancelledError:
            exchange.abort()
            if not exchange.gone:
                raise
            return None
        finally:
            exchange.on_gone = None
        if isinstance(use, OllamaError):
            raise use
        return use


async def _caught(use: Awaitable[Use]) -> Use | OllamaError:
    """An answer, not the failure of a task, which would be logged."""
    try:
        return await use
    except OllamaError as error:
        return error


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
