"""Owns what llama-server is asked: /health, /props, /v1/models, /slots, /metrics. Never decides.

Every answer to /slots or /metrics restarts the one-second wait on which llama-server's notice of departed clients
depends: asked more often than about every two seconds, it notices none. /health and /props have no such effect.
"""

import asyncio
import hashlib
import math
import re
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from proxy.backends.control import Control, ControlAnswer, ProbeError
from proxy.backends.probes import Description, Look
from proxy.dialects.facts import EngineFacts, ModelFacts
from proxy.dialects.times import rfc3339_nano
from scheduler.domain import Engine, Operation, Residency, SlotState
from scheduler.names import canonical

_METRIC = re.compile(rb"^llamacpp:(\w+) ([0-9.eE+-]+)$", re.MULTILINE)
_THINKING = re.compile(r"enable_thinking|reasoning_content|<think>|<\|channel\|>")
_NOT_IMPLEMENTED = 501


class _Generation(msgspec.Struct):
    n_ctx: int = 0


class Props(msgspec.Struct):
    """The part of /props that is read every time."""

    total_slots: int = 0
    default_generation_settings: _Generation = msgspec.field(default_factory=_Generation)
    model_alias: str = ""
    model_path: str = ""
    media_marker: str = ""
    is_sleeping: bool = False


class _NextToken(msgspec.Struct):
    n_decoded: int = 0


class _Slot(msgspec.Struct):
    id: int
    is_processing: bool
    n_ctx: int | None = None
    id_task: int | None = None
    n_prompt_tokens: int | None = None
    next_token: list[_NextToken] = []


class _Meta(msgspec.Struct):
    n_vocab: int = 0
    n_ctx_train: int = 0
    n_embd: int = 0
    n_params: int = 0
    size: int = 0
    ftype: str = ""


class _Model(msgspec.Struct):
    id: str
    aliases: list[str] = []
    meta: _Meta | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


def check(answer: ControlAnswer) -> ControlAnswer:
    """Pass a good answer on.

    Raises:
        ProbeError: any other status, in words that say what to do.
    """
    if answer.status == 200:
        return answer
    if answer.status == 401:
        raise ProbeError("llama-server wants an API key: set api_key of this backend to it")
    if answer.status == 503 and b"oading" in answer.body:
        raise ProbeError("llama-server loads its model", loading=True)
    raise ProbeError(f"{answer.path} was answered with status {answer.status}")


class LlamaServerProbe:
    """Asks one llama-server."""

    engine = Engine.LLAMA_SERVER
    describe_every_s = math.inf
    spacing_s = 0.0

    def __init__(self, control: Control, serves: str = "") -> None:
        """`serves` is the path of the model that it must have loaded; empty: any."""
        self._control = control
        self._serves = serves
        self._names: tuple[str, ...] = ()
        self._size_bytes: int | None = None
        self._has_slots = True
        self._has_metrics = True
        self._process_start = ""

    async def ready(self) -> bool:
        """Whether /health says that it serves."""
        try:
            return (await self._control.get("/health")).status == 200
        except ProbeError:
            return False

    async def close(self) -> None:
        """Close its connections."""
        await self._control.close()

    async def describe(self) -> Description:
        """Slots, context, model, capabilities, version.

        Raises:
            ProbeError: not a llama-server that serves one model, not reachable, or still loading.
        """
        answer = check(await self._control.get("/props"))
        whole, props = answer.json(dict[str, Any]), answer.json(Props)
        if props.total_slots < 1:
            raise ProbeError("this llama-server is a router of several models; give the URLs of llama-servers with one")
        listed = check(await self._control.get("/v1/models")).json(_Models).data
        if not listed:
            raise ProbeError("llama-server lists no model")
        meta = listed[0].meta or _Meta()
        self._names = tuple(dict.fromkeys(_public_name(name) for name in (listed[0].id, *listed[0].aliases)))
        self._size_bytes = meta.size or None
        self._has_slots = bool(whole.get("endpoint_slots", True))
        self._has_metrics = (await self._ask_metrics()).status == 200
        capabilities = await self._capabilities()
        modified_at = await asyncio.to_thread(_modified_at, props.model_path)
        facts = EngineFacts(
            engine=self.engine,
            version=str(whole.get("build_info", "")),
            models=tuple(self._model(name, meta, props, whole, capabilities, modified_at) for name in self._names),
            slots=props.total_slots,
            slot_context_tokens=props.default_generation_settings.n_ctx or None,
            chat_template=str(whole.get("chat_template", "")),
            bos_token=str(whole.get("bos_token", "")),
            eos_token=str(whole.get("eos_token", "")),
            props=whole,
            started=f"{self._process_start}{props.media_marker}",
        )
        warnings = []
        if not self._has_slots:
            warnings.append("start it with --slots: without it only slotgate's own leases tell what is busy")
        if not self._has_metrics:
            warnings.append("start it with --metrics: without it requests that go around slotgate are not seen")
        source = "slots" if self._has_slots else "leases"
        return Description(facts, capabilities, source, tuple(warnings), self._epoch_hint())

    async def _ask_metrics(self) -> ControlAnswer:
        answer = await self._control.get("/metrics")
        self._process_start = answer.headers.get("process-start-time-unix", "")
        return answer

    async def _capabilities(self) -> frozenset[Operation]:
        """What it can do, asked with bodies that it refuses before a slot is touched: 501 says that it cannot.

        Generating is asked for only where it embeds: `--embeddings` makes a llama-server do nothing else, and a
        refused chat leaves an ugly line in its log.
        """
        found = {Operation.TOKENIZE, Operation.LOAD, Operation.UNLOAD}
        questions = {"/v1/embeddings": Operation.EMBED, "/v1/rerank": Operation.RERANK, "/infill": Operation.INFILL}
        found.update([operation for path, operation in questions.items() if await self._can(path)])
        if not found & {Operation.EMBED, Operation.RERANK} or await self._can("/v1/chat/completions"):
            found.update((Operation.CHAT, Operation.GENERATE))
        return frozenset(found)

    async def _can(self, path: str) -> bool:
        return (await self._control.post(path, {})).status not in {_NOT_IMPLEMENTED, 404}

    def _epoch_hint(self) -> int:
        text = self._process_start
        return int(text) if text.isascii() and text.isdigit() else 0

    def _model(
        self,
        name: str,
        meta: _Meta,
        props: Props,
        whole: dict[str, Any],
        capabilities: frozenset[Operation],
        modified_at: str,
    ) -> ModelFacts:
        said = (PurePosixPath(props.model_path).name, meta.n_params, meta.size, meta.ftype, meta.n_vocab, meta.n_embd)
        return ModelFacts(
            name=name,
            digest=hashlib.sha256(repr(said).encode()).hexdigest(),
            size_bytes=meta.size,
            modified_at=modified_at,
            parameters=meta.n_params,
            quantization=meta.ftype or str(whole.get("model_ftype", "")),
            context_tokens=meta.n_ctx_train,
            embedding_length=meta.n_embd,
            vocabulary=meta.n_vocab,
            capabilities=model_capabilities(whole, capabilities),
        )

    async def look(self) -> Look:
        """Slots, the engine's own queue, progress; a sleeping engine is left asleep.

        Raises:
            ProbeError: not reachable, still loading, another than asked for, or a bad answer.
        """
        props = check(await self._control.get("/props")).json(Props)
        if self._serves and props.model_path != self._serves:
            raise ProbeError(f"it serves {props.model_path}, not {self._serves}", another=True)
        context = props.default_generation_settings.n_ctx
        identity = f"{props.total_slots}/{context}/{props.model_alias}/{props.model_path}"
        if props.is_sleeping:
            return Look(
                started=props.media_marker or self._process_start, identity=identity, busy_slots=0, sleeping=True
            )
        slots = await self._slots()
        metrics = await self._metrics()
        busy = sum(slot.is_processing for slot in slots) if self._has_slots else None
        states = (SlotState(slot.id, slot.is_processing, slot.n_ctx, slot.n_prompt_tokens) for slot in slots)
        working = metrics.get("requests_processing", 0) > 0 or bool(busy)
        return Look(
            started=props.media_marker or self._process_start,
            identity=identity,
            busy_slots=busy,
            deferred=int(metrics["requests_deferred"]) if "requests_deferred" in metrics else None,
            slots=tuple(states),
            residencies=tuple(
                Residency(canonical(name), context_tokens=context or None, size_bytes=self._size_bytes)
                for name in self._names
            ),
            working=working,
            progress=_progress(slots, metrics),
        )

    async def _slots(self) -> list[_Slot]:
        if not self._has_slots:
            return []
        answer = await self._control.get("/slots")
        if answer.status == _NOT_IMPLEMENTED:
            self._has_slots = False
            return []
        return check(answer).json(list[_Slot])

    async def _metrics(self) -> dict[str, float]:
        if not self._has_metrics:
            return {}
        answer = await self._ask_metrics()
        if answer.status == _NOT_IMPLEMENTED:
            self._has_metrics = False
            return {}
        return parse_metrics(check(answer).body)


def parse_metrics(body: bytes) -> dict[str, float]:
    """The plain (unlabelled) series of llama-server's /metrics, without their `llamacpp:`."""
    return {name.decode(): float(value) for name, value in _METRIC.findall(body)}


def _progress(slots: list[_Slot], metrics: dict[str, float]) -> str:
    """Changes with every batch: the counter of decodes, and what each slot holds and has produced."""
    work = [(slot.id_task, slot.n_prompt_tokens, *(token.n_decoded for token in slot.next_token)) for slot in slots]
    return f"{metrics.get('n_decode_total')}/{metrics.get('prompt_tokens_total')}/{work}"


def model_capabilities(props: dict[str, Any], operations: frozenset[Operation]) -> tuple[str, ...]:
    """Ollama's words for what a llama-server's model can do, from the capabilities of its template and projector."""
    template, caps = str(props.get("chat_template", "")), props.get("chat_template_caps") or {}
    found = {
        "completion": Operation.CHAT in operations,
        "tools": bool(caps.get("supports_tools") or caps.get("supports_tool_calls")),
        "vision": bool((props.get("modalities") or {}).get("vision")),
        "audio": bool((props.get("modalities") or {}).get("audio")),
        "insert": Operation.INFILL in operations,
        "thinking": bool(caps.get("supports_reasoning_effort") or _THINKING.search(template)),
        "embedding": Operation.EMBED in operations,
    }
    return tuple(name for name, has in found.items() if has)


def _modified_at(model_path: str) -> str:
    """When the model's file was changed; the start of Unix time where the file is not here: clients want one."""
    try:
        changed_ns = Path(model_path).stat().st_mtime_ns if model_path else 0
    except OSError:
        changed_ns = 0
    return rfc3339_nano(changed_ns)


def _public_name(name: str) -> str:
    """Without an alias llama-server calls its model by the path of its file, which is no name for clients."""
    is_path = name.startswith("/") and name.endswith(".gguf")
    return PurePosixPath(name).name.removesuffix(".gguf") if is_path else name
