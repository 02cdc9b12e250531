"""Owns what Ollama is asked: /, /api/version, /api/tags, /api/show, /api/ps. Never decides.

What none of these tells (slots, what is busy, settings) is read from its processes where they can be found: see
`ollama_slots` and `proxy.backends.ollama_settings`.

/api/ps and /api/tags can take seconds while Ollama loads or unloads: slow means busy, not dead.
"""

import asyncio
import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from proxy.backends import model_dir
from proxy.backends.control import Control, ProbeError
from proxy.backends.ollama_children import Found
from proxy.backends.ollama_settings import ADVICE, OllamaSettings, findings, read_settings
from proxy.backends.probes import Description, Look
from proxy.backends.probes.ollama_models import NOTHING, Learned, Shows, default_context
from proxy.backends.probes.ollama_slots import Loaded, OllamaSlots
from proxy.dialects.facts import EngineFacts, ModelFacts
from scheduler.domain import Engine, Operation, Residency
from scheduler.names import canonical

GREETING = b"Ollama is running"
CAPABILITIES = frozenset(
    {Operation.CHAT, Operation.GENERATE, Operation.EMBED, Operation.LOAD, Operation.UNLOAD}
)  # no tokenize, rerank or infill route

_COUNT = re.compile(r"([0-9.]+)([KMBT]?)")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_SHIFTLESS = "deepseek2"
"""Its models do not shift a full context unless a request wants that. Source: Ollama 0.33, server/routes.go."""
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
    remote_model: str = ""
    """The model elsewhere that it stands for; empty: it is here."""


class PsEntry(msgspec.Struct):
    """One loaded model, as /api/ps tells it."""

    name: str
    digest: str = ""
    """Of what was loaded, whatever has that name by now."""
    size: int | None = None
    size_vram: int | None = None
    context_length: int | None = None
    expires_at: str = ""


class Ps(msgspec.Struct):
    """The answer of /api/ps."""

    models: list[PsEntry] | None = None


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


class Given(msgspec.Struct, frozen=True):
    """What is known of an Ollama beside what it says itself: no route of it tells any of this."""

    slots: int = 1
    """As configured, or assumed."""
    slots_configured: bool = False
    context_tokens: int | None = None
    """Context of one slot where nobody says another, as configured."""
    max_loaded: int = 0
    """Models that it may hold at once, as configured; 0: not known."""
    environment: Mapping[str, str] | None = None
    """What slotgate started it with; None: somebody else started it."""
    on_cpu: bool = False
    """It is known to use no GPU."""
    model_store: str = ""
    """The directory of its models, as an operator named it; empty: it is found out."""


class OllamaProbe:
    """Asks one Ollama, and the llama-servers that it runs."""

    engine = Engine.OLLAMA

    def __init__(
        self,
        control: Control,
        given: Given,
        children: OllamaSlots | None = None,
        learned: Learned | None = None,
        *,
        describe_every_s: float = 10.0,
    ) -> None:
        """`children` None: its llama-servers are not looked for. `learned` outlives this probe."""
        self._control = control
        self._given = given
        self._children = children or OllamaSlots(None)
        self._learned = learned or Learned()
        self._shows = Shows(control)
        self._models: dict[str, ModelFacts] = {}
        self._loaded: tuple[str, ...] = ()
        self._digests: frozenset[str] = frozenset()
        """What is loaded."""
        self._new: set[str] = set()
        """Of these, what the description did not know."""
        self._started = ""
        self._why = ""
        """Why the llama-servers were not asked, as described last; empty: they are."""
        self.describe_every_s = describe_every_s

    @property
    def spacing_s(self) -> float:
        """As long as its llama-servers are asked, they need a pause."""
        return 0.0 if self._children.why else self._children.spacing_s

    async def ready(self) -> bool:
        """Whether it tells its version."""
        try:
            return (await self._control.get("/api/version")).status == 200
        except ProbeError:
            return False

    async def close(self) -> None:
        """Close its connections."""
        await self._children.close()
        await self._control.close()

    async def describe(self) -> Description:
        """Version and models on disk, what these are loaded from, and with which settings it was started.

        Raises:
            ProbeError: not reachable, or not an Ollama.
        """
        version = (await self._control.get("/api/version")).json(_Version).version
        answer = await self._control.get("/api/tags")
        if answer.status != 200:
            raise ProbeError(f"/api/tags was answered with status {answer.status}")
        listed = []
        for entry in answer.json(dict[str, Any]).get("models") or []:
            try:
                listed.append((entry, msgspec.convert(entry, _Listed)))
            except msgspec.ValidationError as error:
                raise ProbeError(f"/api/tags lists something strange: {error}") from error
        local = {each.digest: each.name for _, each in listed if each.digest and not each.remote_model}
        first = [model.digest for name in self._loaded if (model := self._models.get(name)) is not None]
        await self._shows.learn(local, first, self._digests)
        found = await self._children.find()
        environment = self._given.environment if self._given.environment is not None else found.environment
        settings = read_settings(environment) if environment is not None else OllamaSettings()
        models = tuple(self._model(entry, each, settings) for entry, each in listed)
        self._models = {canonical(model.name): model for model in models}
        self._why = self._children.why
        facts = EngineFacts(
            engine=self.engine,
            version=version,
            models=models,
            slots=self._slots(settings),
            slot_context_tokens=settings.context_tokens or self._given.context_tokens,
            started=version,
            max_loaded=settings.max_loaded or self._given.max_loaded,
            model_store=await self._model_store(environment),
            slot_source_why=self._why or f"the llama-server of each loaded model is asked, as {_below(found)} runs it",
        )
        warnings: tuple[str, ...] = ()
        if self._given.environment is None:
            advice = (ADVICE,) if environment is None else ()
            warnings = advice or findings(environment or {}, found.unit, on_cpu=self._given.on_cpu)
        return Description(
            facts,
            CAPABILITIES,
            "leases" if self._why else "children",
            warnings,
            slots_assumed=environment is None and not self._given.slots_configured,
        )

    async def _model_store(self, environment: Mapping[str, str] | None) -> str:
        """The directory of its models; it may be on a slow disk."""
        process = self._children.found.ollama
        others = process.pid if process is not None and self._given.environment is None else None
        return self._given.model_store or await asyncio.to_thread(model_dir.identity, environment, others)

    def _slots(self, settings: OllamaSettings) -> int:
        """What it has, and no more than an operator wants to use of an Ollama that slotgate did not start."""
        if settings.parallel is None:
            return self._given.slots
        wants_fewer = self._given.environment is None and self._given.slots_configured
        return min(settings.parallel, self._given.slots) if wants_fewer else settings.parallel

    def _model(self, entry: dict[str, Any], listed: _Listed, settings: OllamaSettings) -> ModelFacts:
        details, shown = listed.details, self._shows.of(listed.digest) or NOTHING
        capabilities = listed.capabilities if listed.capabilities is not None else shown.capabilities
        capabilities = ("completion",) if capabilities is None else tuple(capabilities)
        trained = details.context_length or shown.trained_context
        engine = settings.context_tokens or self._given.context_tokens or self._learned.context(canonical(listed.name))
        context = default_context(shown, engine, trained, sees="vision" in capabilities)
        return ModelFacts(
            name=listed.name,
            digest=listed.digest,
            size_bytes=listed.size,
            modified_at=listed.modified_at,
            format=details.format,
            family=details.family,
            parameters=parse_count(details.parameter_size),
            quantization=details.quantization_level,
            context_tokens=trained,
            embedding_length=details.embedding_length,
            capabilities=capabilities,
            weights=shown.weights,
            default_context=None if listed.remote_model else context,
            listing=entry,
        )

    async def look(self) -> Look:
        """Loaded models, and what their llama-servers do. While Ollama loads, it may not even tell the former.

        Its own queue is told by nothing.

        Raises:
            ProbeError: nobody answers, or it is not an Ollama.
        """
        answer = await self._control.get("/")
        if answer.status != 200 or GREETING not in answer.body:
            raise ProbeError(f"/ was answered with status {answer.status}, not with {GREETING.decode()!r}")
        expected = self._learned.expected  # what is loaded while the list is on its way may not be in it yet
        try:
            ps = await self._control.get("/api/ps")
        except ProbeError:
            return Look(alive_only=True)  # slow means busy
        if ps.status != 200:
            raise ProbeError(f"/api/ps was answered with status {ps.status}")
        shown = ps.json(Ps).models or ()
        loaded = [self._loaded_one(each) for each in shown]
        self._digests = frozenset(each.digest for each in shown)
        self._loaded = tuple(each.residency.model for each in loaded)
        occupancy = await self._children.read(loaded)
        process = self._children.found.ollama
        started = f"{process.pid}/{process.started}" if process else ""
        if self._started and started and started != self._started:
            self._learned.clear()
        self._started = started or self._started
        taught = [self._learn(residency) for residency in occupancy.residencies if residency.model in expected]
        new = {name for name in self._loaded if self._is_new(name)}
        unknown, self._new = new - self._new, new  # one that stays unknown is not asked for with every look
        return Look(
            started=started,
            busy_slots=occupancy.busy_slots,
            deferred=occupancy.deferred,
            residencies=occupancy.residencies,
            working=occupancy.working,
            progress=occupancy.progress,
            outdated=any(taught) or bool(unknown) or self._children.why != self._why,
        )

    def _loaded_one(self, loaded: PsEntry) -> Loaded:
        model = self._models.get(canonical(loaded.name))
        digest = loaded.digest or (model.digest if model else "")
        shown = self._shows.of(digest) or NOTHING
        residency = Residency(
            model=canonical(loaded.name),
            context_tokens=loaded.context_length,
            size_bytes=loaded.size,
            gpu_bytes=loaded.size_vram,
            expires_at_unix_s=parse_expiry(loaded.expires_at),
            weights=shown.weights,
        )
        shifts = model is not None and "completion" in model.capabilities and shown.architecture != _SHIFTLESS
        is_listed = any(each.digest == digest for each in self._models.values())
        return Loaded(residency, may_shift=shifts, is_listed=is_listed)

    def _learn(self, residency: Residency) -> bool:
        model = self._models.get(residency.model)
        if model is None:
            return False
        shown = self._shows.of(model.digest) or NOTHING
        return self._learned.see(residency.model, residency.context_tokens, shown, model.context_tokens)

    def _is_new(self, name: str) -> bool:
        """Whether a loaded model came after the list was read, or was not asked for yet."""
        model = self._models.get(name)
        return model is None or (bool(model.digest) and self._shows.of(model.digest) is None)


def _below(found: Found) -> str:
    return f"PID {found.ollama.pid}" if found.ollama else "it"
