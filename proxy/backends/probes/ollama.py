"""Owns what Ollama is asked: /, /api/version, /api/tags, /api/ps. Never decides.

/api/ps and /api/tags can take seconds while Ollama loads or unloads: slow means busy, not dead.
"""

import datetime as dt
import re
from typing import Any

import msgspec

from proxy.backends.control import Control, ProbeError
from proxy.backends.probes import Description, Look
from proxy.dialects.facts import EngineFacts, ModelFacts
from scheduler.domain import Engine, Operation, Residency
from scheduler.names import canonical

GREETING = b"Ollama is running"
CAPABILITIES = frozenset(
    {Operation.CHAT, Operation.GENERATE, Operation.EMBED, Operation.LOAD, Operation.UNLOAD}
)  # no tokenize, rerank or infill route

_COUNT = re.compile(r"([0-9.]+)([KMBT]?)")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NEVER_YEAR = 2200
"""keep_alive = -1 is told as an expiry some three hundred years ahead."""


class _Version(msgspec.Struct):
    version: str


class _Details(msgspec.Struct):
    format: str = ""
    family: str = ""
    parameter_size: str = ""
    quantization_level: str = ""
    context_length: int = 0
    embedding_length: int = 0


class _Listed(msgspec.Struct):
    name: str
    digest: str = ""
    size: int = 0
    modified_at: str = ""
    details: _Details = msgspec.field(default_factory=_Details)
    capabilities: list[str] | None = None


class _Loaded(msgspec.Struct):
    name: str
    size: int | None = None
    size_vram: int | None = None
    context_length: int | None = None
    expires_at: str = ""


class _Ps(msgspec.Struct):
    models: list[_Loaded] | None = None


def parse_count(text: str) -> int:
    """`134.52M` -> 134520000; 0 for what is no count."""
    match = _COUNT.fullmatch(text.strip())
    try:
        return round(float(match[1]) * _UNITS[match[2]]) if match else 0
    except ValueError:
        return 0


def parse_expiry(text: str) -> float | None:
    """Unix seconds of an RFC 3339 time; None: never, or unreadable."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.year >= _NEVER_YEAR or moment.year < 1970 else moment.timestamp()


class OllamaProbe:
    """Asks one Ollama."""

    engine = Engine.OLLAMA

    def __init__(
        self, control: Control, *, slots: int, slot_context_tokens: int | None, describe_every_s: float = 10.0
    ) -> None:
        """`slots` and `slot_context_tokens` are what it was configured with: Ollama tells neither."""
        self._control = control
        self._slots = slots
        self._context = slot_context_tokens
        self.describe_every_s = describe_every_s

    async def ready(self) -> bool:
        """Whether it tells its version."""
        try:
            return (await self._control.get("/api/version")).status == 200
        except ProbeError:
            return False

    async def close(self) -> None:
        """Close its connections."""
        await self._control.close()

    async def describe(self) -> Description:
        """Version and models on disk.

        Raises:
            ProbeError: not reachable, or not an Ollama.
        """
        version = (await self._control.get("/api/version")).json(_Version).version
        answer = await self._control.get("/api/tags")
        if answer.status != 200:
            raise ProbeError(f"/api/tags was answered with status {answer.status}")
        entries = answer.json(dict[str, Any]).get("models") or []
        models = []
        for entry in entries:
            try:
                models.append(_model(entry, msgspec.convert(entry, _Listed)))
            except msgspec.ValidationError as error:
                raise ProbeError(f"/api/tags lists something strange: {error}") from error
        facts = EngineFacts(
            engine=self.engine,
            version=version,
            models=tuple(models),
            slots=self._slots,
            slot_context_tokens=self._context,
            started=version,
        )
        return Description(facts, CAPABILITIES, "leases")

    async def look(self) -> Look:
        """Loaded models. Ollama tells nothing of its slots or queue; while it loads, it may not even tell that.

        Raises:
            ProbeError: nobody answers, or it is not an Ollama.
        """
        answer = await self._control.get("/")
        if answer.status != 200 or GREETING not in answer.body:
            raise ProbeError(f"/ was answered with status {answer.status}, not with {GREETING.decode()!r}")
        try:
            ps = await self._control.get("/api/ps")
        except ProbeError:
            return Look(alive_only=True)  # slow means busy
        if ps.status != 200:
            raise ProbeError(f"/api/ps was answered with status {ps.status}")
        return Look(residencies=tuple(_residency(loaded) for loaded in ps.json(_Ps).models or ()))


def _model(entry: dict[str, Any], listed: _Listed) -> ModelFacts:
    details = listed.details
    return ModelFacts(
        name=listed.name,
        digest=listed.digest,
        size_bytes=listed.size,
        modified_at=listed.modified_at,
        format=details.format,
        family=details.family,
        parameters=parse_count(details.parameter_size),
        quantization=details.quantization_level,
        context_tokens=details.context_length,
        embedding_length=details.embedding_length,
        capabilities=tuple(listed.capabilities) if listed.capabilities is not None else ("completion",),
        listing=entry,
    )


def _residency(loaded: _Loaded) -> Residency:
    return Residency(
        model=canonical(loaded.name),
        context_tokens=loaded.context_length,
        size_bytes=loaded.size,
        gpu_bytes=loaded.size_vram,
        expires_at_unix_s=parse_expiry(loaded.expires_at),
    )
