"""What slotgate answers itself: models, what is loaded, slots, versions, merged over all backends.

The shapes are the dialects' (`dialects.listing`); here is decided which backends' facts go into them.
"""

import time
from collections.abc import Callable, Iterator
from urllib.parse import quote

import msgspec
import structlog

from proxy import dialects
from proxy.backends.control import Control, ControlAnswer, ProbeError
from proxy.backends.fleet import Fleet
from proxy.cloud import CloudModels
from proxy.dialects import ClientError, Route, listing
from proxy.dialects.contract import Headers
from proxy.dialects.facts import EngineFacts, ModelFacts
from proxy.dialects.listing import PsEntry, SlotEntry
from proxy.dispatcher import Dispatcher
from proxy.gate_client import GateClient
from proxy.model_store.conflicts import chosen
from scheduler.domain import BackendView, Engine, Health, Residency
from scheduler.names import canonical

log = structlog.get_logger("slotgate.catalog")

Reply = tuple[int, Headers, bytes]

JSON = ("Content-Type", "application/json; charset=utf-8")
PLAIN_JSON = ("Content-Type", "application/json")
TEXT = ("Content-Type", "text/plain; charset=utf-8")
OLLAMA_API_VERSION = "0.33.0"
"""The Ollama whose API slotgate speaks: shown where no backend is one; clients refuse older ones."""
SHOW_TIMEOUT_S = 30.0
"""An Ollama reads the model's file for /api/show; disks can be slow."""


class Catalog:
    """Answers the routes that need no slot of an engine."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        fleet: Fleet,
        gates: GateClient | None = None,
        clock: Callable[[], float] = time.monotonic,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._gates = gates
        self._cloud = CloudModels(dispatcher.backends, fleet)
        self._clock = clock
        self._clock_ns = clock_ns

    async def answer(self, route: Route, body: bytes) -> Reply:
        """Status, headers and body for a local route.

        Raises:
            ClientError: no such model, no backend, or a body that is none.
        """
        if (told := dialects.account_reply(route.path, body, cloud=self._cloud.backend is not None)) is not None:
            return told
        match route.path:
            case "/":
                return 200, [TEXT], listing.ROOT_TEXT
            case "/api/version":
                return 200, [JSON], msgspec.json.encode({"version": self._version()})
            case "/api/tags":
                return 200, [JSON], listing.ollama_tags(self._models())
            case "/api/ps":
                return 200, [JSON], listing.ollama_ps(self._loaded(), self._clock_ns())
            case "/api/show":
                return await self._show(route, body)
            case "/v1/models":
                return 200, [PLAIN_JSON], listing.openai_models(self._models())
            case "/v1/models/{model}":
                return await self._openai_model(route.model or "")
            case "/props":
                return 200, [JSON], listing.llamacpp_props(self._llama_servers())
            case "/slots":
                return self._slots(route)
            case "/health":
                return self._health()
        raise LookupError(f"no answer for {route.path}")

    def _views(self) -> tuple[BackendView, ...]:
        return self._dispatcher.scheduler.snapshot(self._clock()).backends

    def _facts(self) -> Iterator[tuple[BackendView, EngineFacts]]:
        """Backends that have told what they are, in order of their names: the same order at every proxy."""
        for view in sorted(self._views(), key=lambda view: view.backend.id):
            if (facts := self._fleet.facts(view.backend.id)) is not None:
                yield view, facts

    def _models(self) -> list[ModelFacts]:
        """Every model once; where backends differ, the copy that `model_store.conflicts` says is meant."""
        found: dict[str, list[ModelFacts]] = {}
        for _, facts in self._facts():
            for model in facts.models:
                found.setdefault(canonical(model.name), []).append(model)
        return [chosen(copies) for copies in found.values()]

    def _find(self, asked: str) -> tuple[BackendView, EngineFacts, ModelFacts]:
        """The backend to ask about a model: one that is up, if any has it."""
        name = canonical(asked)
        fallback = None
        for view, facts in self._facts():
            for model in facts.models:
                if canonical(model.name) == name:
                    if view.health in (Health.READY, Health.SUSPECT, Health.DRAINING):
                        return view, facts, model
                    fallback = fallback or (view, facts, model)
        if fallback is None:
            raise dialects.model_not_found(asked)
        return fallback

    def _version(self) -> str:
        """The lowest of the Ollamas' versions, so that clients rely on nothing that one of them lacks."""
        versions = [facts.version for _, facts in self._facts() if facts.engine is Engine.OLLAMA and facts.version]
        return min(versions, key=_version_key) if versions else OLLAMA_API_VERSION

    def _llama_servers(self) -> list[EngineFacts]:
        engines = [facts for _, facts in self._facts() if facts.engine is Engine.LLAMA_SERVER]
        if not engines:
            raise ClientError(501, "no backend is a llama-server")
        return engines

    async def _openai_model(self, asked: str) -> Reply:
        if dialects.named_cloud(asked) and (cloud := self._cloud.runs(asked)) is not None:
            answer = await self._ask(cloud, "GET", f"/v1/models/{quote(asked)}", None)
            return answer.status, [PLAIN_JSON], answer.body
        _, _, model = self._find(asked)
        return 200, [PLAIN_JSON], listing.openai_model(model, asked)

    async def _show(self, route: Route, body: bytes) -> Reply:
        """An Ollama is asked with all that the client said (`verbose`, `system`, `options`)."""
        asked = dialects.read_model_name(route, body)
        if (backend_id := self._cloud.runs(asked)) is None:
            view, facts, model = self._find(asked)
            if facts.engine is not Engine.OLLAMA:
                return 200, [JSON], listing.ollama_show(facts, model)
            backend_id = view.backend.id
        fields, _ = dialects.read_object(route, body)
        answer = await self._ask(backend_id, "POST", "/api/show", fields)
        return answer.status, [JSON], answer.body

    async def _ask(self, backend_id: str, method: str, path: str, content: object) -> ControlAnswer:
        """Ask an Ollama what only it can tell.

        Raises:
            ClientError: it is not there or does not answer.
        """
        try:
            control = Control(self._fleet.endpoint(backend_id), SHOW_TIMEOUT_S, self._gates)
        except LookupError:
            raise ClientError(503, f"backend {backend_id} is not there") from None
        try:
            return await (control.get(path) if method == "GET" else control.post(path, content))
        except ProbeError as error:
            raise ClientError(502, f"backend {backend_id} did not answer: {error}") from error
        finally:
            await control.close()

    def _loaded(self) -> list[PsEntry]:
        """One entry per model that is loaded anywhere; sizes are sums, slots are those of all its backends."""
        entries: dict[str, PsEntry] = {}
        for view, facts in self._facts():
            for residency in view.residencies:
                if facts.engine is Engine.OLLAMA and residency.size_bytes is None:  # loaded since the last look
                    self._fleet.look(view.backend.id, self._clock())
                entry = _entry(view, residency, facts)
                known = entries.get(residency.model)
                entries[residency.model] = entry if known is None else _merged(known, entry)
        return list(entries.values())

    def _slots(self, route: Route) -> Reply:
        self._llama_servers()
        slots = [
            slot
            for view, facts in self._facts()
            if facts.engine is Engine.LLAMA_SERVER
            for slot in _slot_entries(view, None)
        ]
        if dict(route.query).get("fail_on_no_slot") and not any(slot.state == "idle" for slot in slots):
            status, body = listing.llamacpp_no_slot()
            return status, [JSON], body
        return 200, [JSON], listing.llamacpp_slots(slots)

    def _health(self) -> Reply:
        """As llama-server says it: 200 once a backend can answer, 503 while none can."""
        if any(view.health in (Health.READY, Health.SUSPECT) for view in self._views()):
            return 200, [JSON], b'{"status":"ok"}'
        return 503, [JSON], b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'


def _entry(view: BackendView, residency: Residency, facts: EngineFacts) -> PsEntry:
    model = next((each for each in facts.models if canonical(each.name) == residency.model), None)
    details = model.listing.get("details") if model is not None else None
    return PsEntry(
        model=model or ModelFacts(name=residency.model),
        size_bytes=residency.size_bytes or (model.size_bytes if model else 0),
        gpu_bytes=residency.gpu_bytes or 0,
        context_tokens=residency.context_tokens or view.backend.contexts.get(residency.model, 0),
        expires_at_unix_s=residency.expires_at_unix_s,
        slots=tuple(_slot_entries(view, residency)),
        details=details,
    )


def _merged(first: PsEntry, second: PsEntry) -> PsEntry:
    return msgspec.structs.replace(
        first,
        size_bytes=first.size_bytes + second.size_bytes,
        gpu_bytes=first.gpu_bytes + second.gpu_bytes,
        slots=first.slots + second.slots,
    )


def _slot_entries(view: BackendView, residency: Residency | None) -> list[SlotEntry]:
    """The backend's slots: as the engine told last, corrected by our leases, which are the faster truth.

    Which slot a lease is in is the engine's business where it has not told yet: any idle one is shown busy.
    """
    backend = view.backend
    context = residency.context_tokens if residency else None
    known = {slot.id: slot for slot in view.slots}
    numbers = sorted(known) or list(range(backend.slots))
    leased = view.taken
    busy = {number for number in numbers if (slot := known.get(number)) is not None and slot.busy}
    busy = set(sorted(busy)[:leased]) if leased < len(busy) else busy
    for number in reversed(numbers):  # engines take the highest free slot first
        if len(busy) >= leased:
            break
        busy.add(number)
    return [
        SlotEntry(
            id=number,
            state="busy" if number in busy else "idle",
            backend=backend.id,
            cached_tokens=known[number].cached_tokens if number in known else None,
            context_tokens=(known[number].context_tokens if number in known else None) or context,
        )
        for number in numbers
    ]


def _version_key(version: str) -> tuple[int, ...]:
    numbers = version.partition("-")[0].split(".")
    return tuple(int(number) if number.isdecimal() else 0 for number in numbers)
