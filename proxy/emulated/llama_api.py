"""The HTTP API of an emulated llama-server: its routes, in its order of checks. Must not know how slots are chosen."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from proxy.emulated.answers import StreamAnswer, StreamForm, WholeAnswer
from proxy.emulated.engine import SlotEngine
from proxy.emulated.faults import Fault
from proxy.emulated.jobs import Job, Problem
from proxy.emulated.llama_frames import (
    ChatFrames,
    CompletionFrames,
    NativeFrames,
    chat_whole,
    completion_whole,
    event,
    native_whole,
    random_id,
    sse,
)
from proxy.emulated.llama_heads import STREAM, problem_body, send_early, send_json, send_problem
from proxy.emulated.llama_messages import MessagesFrames, messages_whole
from proxy.emulated.llama_requests import (
    Asked,
    Refused,
    chat_messages,
    read_chat,
    read_infill,
    read_json,
    read_messages,
    read_prompt,
    read_responses,
)
from proxy.emulated.llama_responses import ResponsesFrames, responses_whole
from proxy.emulated.llama_saved import SavedSlots
from proxy.emulated.llama_state import metrics, model_list, props, slot_view
from proxy.emulated.llama_vectors import LlamaVectors
from proxy.emulated.options import Options
from proxy.emulated.prompts import DEFAULT_SYSTEM, render_chat
from proxy.emulated.replies import Wish, plan_reply
from proxy.emulated.text import detokenize, piece_bytes, tokenize
from proxy.emulated.wire import Exchange

_WRONG_TYPES = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""What a field of a wrong type that no reader checks comes to, before anything is answered."""

_PUBLIC = {"/health", "/v1/health"}
Route = Callable[[Exchange, Fault | None], Awaitable[None]]


class LlamaApi:
    """llama-server's API in front of one slot engine."""

    inference = frozenset(
        {
            "/chat/completions",
            "/v1/chat/completions",
            "/v1/completions",
            "/completion",
            "/completions",
            "/v1/messages",
            "/responses",
            "/v1/responses",
            "/v1/embeddings",
            "/embedding",
            "/embeddings",
            "/rerank",
            "/reranking",
            "/v1/rerank",
            "/v1/reranking",
            "/infill",
        }
    )

    def __init__(self, options: Options) -> None:
        self.options = options
        self.engine = SlotEngine(
            options.settings(), speed=options.speed, departure=options.departure, quiet_s=options.quiet_s
        )
        self.ready = asyncio.Event()
        self._model = options.models[0].name
        self._started_unix = int(time.time())
        self._marker = f"<__media_{random_id()}__>"
        self._scraped: dict[str, float] = {}
        self._saved = SavedSlots(options, self.engine)
        self._routes = self._table()

    async def start(self) -> None:
        """Begin to load: ready after that time."""
        if (seconds := self.options.load_s / self.options.speed) > 0:
            asyncio.get_running_loop().call_later(seconds, self.ready.set)
        else:
            self.ready.set()

    async def close(self) -> None:
        """Stop computing."""
        await self.engine.close()

    def orphan(self) -> None:
        """Nothing: it is one process."""

    def engines(self) -> list[SlotEngine]:
        """The one engine."""
        return [self.engine]

    def loading(self, exchange: Exchange) -> None:
        """Answer that the model is loading."""
        send_early(exchange, 503, "unavailable_error", "Loading model")

    def broken(self, exchange: Exchange, message: str) -> None:
        """Answer with an internal error."""
        send_problem(exchange, Problem(500, "server_error", message))

    async def respond(self, exchange: Exchange, fault: Fault | None) -> None:
        """Answer one request; the order of the checks is the real engine's."""
        if exchange.method == "OPTIONS":
            cors = [
                ("Access-Control-Allow-Credentials", "true"),
                ("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"),
                ("Access-Control-Allow-Headers", "*"),
                ("Content-Type", "text/html"),
            ]
            exchange.whole(200, cors, b"")
            return
        if not self.ready.is_set():
            self.loading(exchange)
            return
        if not self._allowed(exchange):
            send_early(exchange, 401, "authentication_error", "Invalid API Key")
            return
        method = "GET" if exchange.method == "HEAD" else exchange.method
        path = "/slots/*" if exchange.path.startswith("/slots/") else exchange.path
        route = self._routes.get((method, path))
        if route is None:
            send_early(exchange, 404, "not_found_error", "File Not Found")
            return
        try:
            await route(exchange, fault)
        except Refused as refused:
            send_problem(exchange, refused.problem)
        except _WRONG_TYPES as error:
            if exchange.status:
                raise
            message = f"[json.exception.type_error.302] type must be another: {error}"
            send_problem(exchange, Problem(400, "invalid_request_error", message))

    def _allowed(self, exchange: Exchange) -> bool:
        keys = self.options.api_keys
        given = exchange.headers.get("authorization", "").removeprefix("Bearer ") or exchange.headers.get(
            "x-api-key", ""
        )
        return not keys or exchange.path in _PUBLIC or given in keys

    def _table(self) -> dict[tuple[str, str], Route]:
        table: dict[tuple[str, str], Route] = {}

        def add(method: str, paths: str, route: Route) -> None:
            table.update({(method, path): route for path in paths.split()})

        add("GET", "/health /v1/health", self._health)
        add("GET", "/models /v1/models", self._models)
        add("GET", "/props", self._props)
        add("POST", "/props", self._off("changing global properties", "--props"))
        add("GET", "/slots", self._slots)
        add("POST", "/slots/*", self._slot_action)
        add("GET", "/metrics", self._metrics if self.options.metrics else self._off("metrics endpoint", "--metrics"))
        add("GET", "/lora-adapters", self._no_adapters)
        add("POST", "/chat/completions /v1/chat/completions", self._generate(read_chat, ChatFrames, chat_whole))
        add("POST", "/v1/completions", self._generate(read_prompt, CompletionFrames, completion_whole))
        add("POST", "/completion /completions", self._generate(read_prompt, NativeFrames, _native))
        add("POST", "/v1/messages", self._generate(read_messages, MessagesFrames, messages_whole, named=True))
        add(
            "POST",
            "/responses /v1/responses",
            self._generate(read_responses, ResponsesFrames, responses_whole, named=True),
        )
        add("POST", "/v1/messages/count_tokens", self._count_messages)
        add("POST", "/chat/completions/input_tokens /v1/chat/completions/input_tokens", self._count_chat)
        add("POST", "/tokenize", self._tokenize)
        add("POST", "/detokenize", self._detokenize)
        add("POST", "/apply-template", self._apply_template)
        embeds, vectors = self.options.embeddings, LlamaVectors(self.options, self.engine)
        off = self._off("embeddings", "--embeddings")
        add("POST", "/v1/embeddings", vectors.openai if embeds else off)
        add("POST", "/embedding /embeddings", vectors.native if embeds else off)
        ranks = vectors.rerank if self.options.reranking else self._off("reranking", "--reranking")
        add("POST", "/rerank /reranking /v1/rerank /v1/reranking", ranks)
        infill = self._generate(read_infill, NativeFrames, _native)
        add("POST", "/infill", infill if self.options.infill else self._no_infill)
        return table

    # -- state

    def _off(self, what: str, flag: str) -> Route:
        message = f"This server does not support {what}. Start it with `{flag}`"

        async def refused(exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG001 - the same for all
            raise Refused(Problem(501, "not_supported_error", message))

        return refused

    async def _no_infill(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        missing = "prefix token is missing. suffix token is missing. middle token is missing. "
        raise Refused(Problem(501, "not_supported_error", f"Infill is not supported by this model: {missing}"))

    async def _health(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        send_json(exchange, {"status": "ok"})

    async def _models(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        send_json(exchange, model_list(self.options, self.engine))

    async def _props(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        send_json(exchange, props(self.options, self.engine, self._marker))

    async def _no_adapters(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        send_json(exchange, [])

    async def _slots(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        self.engine.polled()
        if exchange.query.get("fail_on_no_slot") and all(slot.busy for slot in self.engine.slots):
            raise Refused(Problem(503, "unavailable_error", "no slot available"))
        send_json(exchange, [slot_view(slot, self.engine) for slot in self.engine.slots])

    async def _slot_action(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        body = read_json(exchange.body or b"{}")
        slot = exchange.path.removeprefix("/slots/")
        send_json(exchange, await self._saved.act(slot, exchange.query.get("action", ""), body))

    async def _metrics(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        self.engine.polled()
        headers = [
            ("Process-Start-Time-Unix", str(self._started_unix)),
            ("Content-Type", "text/plain; version=0.0.4"),
        ]
        exchange.whole(200, headers, metrics(self.engine, self._scraped).encode())

    # -- without a slot

    async def _count_messages(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        asked = read_messages(read_json(exchange.body), self.options)
        send_json(exchange, {"input_tokens": len(asked.prompts[0])})

    async def _count_chat(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        asked = read_chat(read_json(exchange.body), self.options)
        send_json(exchange, {"input_tokens": len(asked.prompts[0]), "object": "response.input_tokens"})

    async def _tokenize(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        body = read_json(exchange.body)
        tokens = tokenize(str(body.get("content", "")))
        if body.get("with_pieces"):
            send_json(exchange, {"tokens": [{"id": token, "piece": _piece(token)} for token in tokens]})
        else:
            send_json(exchange, {"tokens": tokens})

    async def _detokenize(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        send_json(exchange, {"content": detokenize(read_json(exchange.body).get("tokens", []))})

    async def _apply_template(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        body = read_json(exchange.body)
        tools = (body.get("tools") or []) if "tools" in self.options.models[0].capabilities else []
        send_json(exchange, {"prompt": render_chat(chat_messages(body), tools, DEFAULT_SYSTEM)})

    # -- with a slot

    def _generate(
        self,
        read: Callable[[dict[str, Any], Options], Asked],
        form: Callable[[Asked, str], StreamForm],
        whole: Callable[[list[Job], Asked, str], Any],
        *,
        named: bool = False,
    ) -> Route:
        async def generate(exchange: Exchange, fault: Fault | None) -> None:
            asked = read(read_json(exchange.body), self.options)

            def refused(problem: Problem) -> None:
                send_problem(exchange, problem)

            def broken(problem: Problem) -> bytes:
                if named:
                    return event({"type": "error", "error": problem_body(problem)})
                return sse({"error": problem_body(problem)})

            def reply(jobs: list[Job]) -> None:
                send_json(exchange, whole(jobs, asked, self._model))

            answer: StreamAnswer | WholeAnswer
            if asked.stream:
                frames = form(asked, self._model)
                answer = StreamAnswer(
                    exchange, self.engine, fault, headers=STREAM, form=frames, refuse=refused, broken=broken
                )
            else:
                answer = WholeAnswer(exchange, self.engine, fault, reply=reply, refuse=refused)
            answer.run(self._jobs(asked, answer))

        return generate

    def _jobs(self, asked: Asked, answer: StreamAnswer | WholeAnswer) -> list[Job]:
        named = asked.body.get("id_slot")
        jobs: list[Job] = []
        for prompt in [prompt for prompt in asked.prompts for _ in range(asked.choices)]:
            choice = len(jobs)
            wish = asked.wish if choice == 0 else _other_seed(asked, choice)
            most = self.engine.context if asked.most < 0 else min(self.engine.context, max(1, asked.most))
            jobs.append(
                Job(
                    prompt,
                    plan_reply(prompt, wish, most),
                    answer,
                    most=asked.most,
                    named_slot=int(named) if named is not None and named >= 0 else None,
                    reuse=asked.body.get("cache_prompt", True) is not False,
                    streams=asked.stream,
                    reports_progress=asked.stream and bool(asked.body.get("return_progress")),
                    choice=choice,
                    params=asked.params,
                )
            )
        return jobs


def _native(jobs: list[Job], asked: Asked, model: str) -> Any:
    answers = [native_whole(job, asked, model) for job in jobs]
    return answers if len(answers) > 1 else answers[0]


def _other_seed(asked: Asked, choice: int) -> Wish:
    return msgspec.structs.replace(asked.wish, seed=asked.wish.seed + choice)


def _piece(token: int) -> str | list[int]:
    raw = piece_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
