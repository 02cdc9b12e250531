"""The admin API's part about loaded models: loading, unloading, pins, and where each model is. Decides nothing.

A load that was asked for is the scheduler's to plan; here it is followed, until the model is there or cannot be.
"""

import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus

import msgspec
from aiohttp import web

from proxy.admin_api import ErrorAnswer
from proxy.admin_policy import as_json
from proxy.dispatcher import Dispatcher
from proxy.loads import LoadRecord
from proxy.residency import Residencies
from proxy.residency_api import (
    LOAD,
    PIN,
    UNLOAD,
    UNPIN,
    LoadAnswer,
    ModelWish,
    PinAnswer,
    PinnedPlace,
    ResidentModel,
    UnloadAnswer,
    load_path,
)
from proxy.store.trouble import StoreDown
from scheduler import events
from scheduler.domain import BackendView, Engine, Health, Residency
from scheduler.loading import SOON_OVER_S
from scheduler.names import canonical, short
from scheduler.operators import WANTED_S
from scheduler.planning import only_copies, serves_pin
from scheduler.residencies import coming
from scheduler.runner import Runner, normalise, shares, suits, told

ANYWHERE = "one backend at least"
KEPT = 64
"""Loads that were asked for and are remembered."""


class _Wanted(msgspec.Struct):
    """A load that an operator asked for."""

    id: str
    model: str
    backend_id: str | None
    runner: Runner
    at_s: float
    ended: LoadAnswer | None = None


class _Refused(Exception):
    """What was asked for cannot be; carries the answer that says so."""

    def __init__(self, status: int, answer: ErrorAnswer) -> None:
        super().__init__(answer.error)
        self.status = status
        self.answer = answer


class AdminResidency:
    """Answers what the CLI asks and wants of loaded models."""

    def __init__(self, dispatcher: Dispatcher, residencies: Residencies, keep_alive_s: Callable[[str], float]) -> None:
        """`keep_alive_s`: how long an idle model stays loaded at a backend, in seconds; below 0: for ever."""
        self._keep_alive_s = keep_alive_s
        self._dispatcher = dispatcher
        self._residencies = residencies
        self._wanted: deque[_Wanted] = deque(maxlen=KEPT)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Answer these paths."""
        router.add_post(LOAD, self._answered(self._load))
        router.add_get(load_path("{id}"), self._load_state)
        router.add_post(UNLOAD, self._answered(self._unload))
        router.add_post(PIN, self._answered(self._pin))
        router.add_post(UNPIN, self._answered(self._unpin))

    def exceeded(self, backend_id: str) -> int:
        """Requests sent there whose prompt and answer may not have fit their context."""
        return self._residencies.exceeded[backend_id]

    def is_pinned(self, model: str) -> bool:
        """Whether a model (canonical name) shall stay loaded anywhere."""
        return self._residencies.pins.is_pinned(model)

    def pins(self, model: str | None = None) -> list[PinnedPlace]:
        """Pins in force: of one model (canonical name), or all."""
        kept = self._residencies.pins
        return [
            PinnedPlace(
                short(pin.model),
                pin.backend_id or None,
                pin.runner.num_ctx,
                not pin.backend_id and kept.is_configured(pin.model),
            )
            for pin in kept.all
            if model in (None, pin.model)
        ]

    def resident(self, view: BackendView) -> list[ResidentModel]:
        """What a backend has loaded, is loading and is about to unload."""
        backend_id, pins = view.backend.id, self._residencies.pins.all
        models = [
            ResidentModel(
                short(residency.model),
                "leaving" if residency.model in view.closing else "loaded",
                residency.context_tokens,
                serves_pin(view, residency, pins),
            )
            for residency in view.residencies
        ]
        if view.loading and all(residency.model != view.loading for residency in view.residencies):
            runner = next(
                (
                    each.runner
                    for each in self._dispatcher.scheduler.loads_under_way()
                    if each.backend_id == backend_id and each.model == view.loading
                ),
                Runner(),
            )
            stays = serves_pin(view, coming(view.loading, runner, view.backend), pins)
            models.append(ResidentModel(short(view.loading), "loading", runner.num_ctx, stays))
        return models

    def _answered(
        self, answer: Callable[[ModelWish], Awaitable[msgspec.Struct]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def respond(request: web.Request) -> web.Response:
            try:
                wish = msgspec.json.decode(await request.read() or b"{}", type=ModelWish)
            except msgspec.MsgspecError as error:
                return as_json(ErrorAnswer(f"not the JSON that {request.path} takes: {error}"), HTTPStatus.BAD_REQUEST)
            try:
                return as_json(await answer(wish))
            except _Refused as error:
                return as_json(error.answer, error.status)
            except StoreDown as error:
                text = f"the store, which keeps the pins of the fleet, cannot be changed now: {error}"
                return as_json(ErrorAnswer(text), HTTPStatus.SERVICE_UNAVAILABLE)

        return respond

    # load

    async def _load(self, wish: ModelWish) -> LoadAnswer:
        model = self._checked(wish, may_be_down=False)
        runner = self._runner(wish, model)
        wanted = _Wanted(secrets.token_hex(4), model, wish.backend, runner, self._dispatcher.clock())
        self._wanted.append(wanted)
        self._dispatcher.feed(events.LoadWanted(model, wish.backend, runner))
        return self._state(wanted)

    async def _load_state(self, request: web.Request) -> web.Response:
        wanted = next((each for each in self._wanted if each.id == request.match_info["id"]), None)
        if wanted is None:
            return as_json(ErrorAnswer("no such load: only the last ones are remembered"), HTTPStatus.NOT_FOUND)
        return as_json(self._state(wanted))

    def _state(self, wanted: _Wanted) -> LoadAnswer:
        """How far a load is. What it came to is remembered: the model may be gone again when it is asked for."""
        if wanted.ended is None:
            answer = self._state_now(wanted)
            if answer.state not in ("loaded", "failed"):
                return answer
            wanted.ended = answer
        return wanted.ended

    def _state_now(self, wanted: _Wanted) -> LoadAnswer:
        answer = LoadAnswer(wanted.id, short(wanted.model), "waiting")
        answer.waited_s = round(self._dispatcher.clock() - wanted.at_s, 3)
        if (there := self._where(wanted)) is not None:
            view, residency = there
            answer.state, answer.backend, answer.context_tokens = "loaded", view.backend.id, residency.context_tokens
            record = self._last_record(wanted, view.backend.id)
            answer.took_ms = None if record is None else record.took_ms
            return answer
        scheduler = self._dispatcher.scheduler
        for each in scheduler.loads_under_way():
            if each.model == wanted.model and wanted.backend_id in (None, each.backend_id):
                answer.state, answer.backend = "loading", each.backend_id
                if each.closing:
                    names = ", ".join(map(short, each.unload))
                    answer.detail = f"waits for what runs on {names}" if names else "waits for what runs there"
                return answer
        record = self._last_record(wanted, wanted.backend_id)
        if record is not None and record.loaded is False and not record.elsewhere:
            answer.state, answer.backend, answer.detail = "failed", record.backend_id, record.detail
            return answer
        why = self._not_yet(wanted.model) | scheduler.why_not_loaded(wanted.model)
        told = {name: text for name, text in why.items() if wanted.backend_id in (None, name)}
        answer.detail = "; ".join(f"{name}: {text}" for name, text in sorted(told.items()))
        if answer.waited_s >= WANTED_S:
            answer.state = "failed"  # the scheduler has given it up
        return answer

    def _not_yet(self, model: str) -> dict[str, str]:
        """By backend: what anybody can see that keeps a model from being loaded there."""
        why: dict[str, str] = {}
        for view in self._views():
            if view.backend.engine is not Engine.OLLAMA or model not in view.backend.models:
                continue
            if view.health in (Health.DOWN, Health.STARTING):
                why[view.backend.id] = f"it is {view.health.value}"
            elif view.draining:
                why[view.backend.id] = "it is drained"
            elif view.loading:
                why[view.backend.id] = f"{short(view.loading)} is being loaded there"
            else:
                why[view.backend.id] = "what is loaded there is not known yet"
        return why

    def _where(self, wanted: _Wanted) -> tuple[BackendView, Residency] | None:
        for view in self._views():
            if wanted.backend_id in (None, view.backend.id):
                for residency in view.residencies:
                    if residency.model not in view.closing and suits(
                        wanted.model, wanted.runner, residency, view.backend
                    ):
                        return view, residency
        return None

    def _last_record(self, wanted: _Wanted, backend_id: str | None) -> LoadRecord | None:
        return next(
            (
                record
                for record in reversed(self._residencies.loads.records)
                if record.model == wanted.model
                and record.began_s >= wanted.at_s
                and backend_id in (None, record.backend_id)
            ),
            None,
        )

    # unload, pin, unpin

    async def _unload(self, wish: ModelWish) -> UnloadAnswer:
        model = self._checked(wish, may_be_down=True)
        views, pins = self._views(), self._residencies.pins
        there = [
            view
            for view in views
            if wish.backend in (None, view.backend.id)
            and any(shares(model, residency, view.backend) for residency in view.residencies)
        ]
        if pinned := only_copies(model, {view.backend.id for view in there}, views, pins.all):
            by = {pin.model for pin in pins.all for view in there if shares(pin.model, Residency(model), view.backend)}
            cures = " and ".join(map(pins.cure, sorted(by)))
            text = f"{short(model)} is pinned on {', '.join(pinned)}: {cures} lets it be unloaded"
            raise _Refused(HTTPStatus.CONFLICT, ErrorAnswer(text))
        answer = UnloadAnswer(short(model), [])
        if not there:
            return answer
        self._dispatcher.feed(events.UnloadWanted(model, wish.backend))
        answer.backends = [view.backend.id for view in there]
        return answer

    async def _pin(self, wish: ModelWish) -> PinAnswer:
        model = self._checked(wish, may_be_down=True)
        await self._residencies.pins.pin(model, wish.backend or "", self._runner(wish, model))
        pins = [pin for pin in self._residencies.pins.all if pin.model == model]
        answer = self._pin_answer(model)
        answer.loaded_on = [
            view.backend.id
            for view in self._views()
            if (wish.backend in (None, view.backend.id))
            and any(serves_pin(view, each, pins) for each in view.residencies)
        ]
        return answer

    async def _unpin(self, wish: ModelWish) -> PinAnswer:
        model = canonical(wish.model)
        before = {pin.backend or "": pin for pin in self.pins(model)}
        if not before:
            others = ", ".join(sorted({pin.model for pin in self.pins()}))
            text = f"{short(model)} is not pinned" + (f"; what is pinned: {others}" if others else "")
            raise _Refused(HTTPStatus.NOT_FOUND, ErrorAnswer(text))
        kept = self._pinned_copies()
        removed = await self._residencies.pins.unpin(model, wish.backend or "")
        if not removed:
            if wish.backend is not None and wish.backend not in before:
                places = " and ".join(f"on {name or ANYWHERE}" for name in sorted(before, reverse=True))
                text = f"{short(model)} is not pinned on {wish.backend}, but {places}"
            else:
                cure = self._residencies.pins.cure(model)
                text = f"{short(model)} is pinned by the configuration: {cure} ends that"
            raise _Refused(HTTPStatus.CONFLICT, ErrorAnswer(text))
        self._let_go(kept.keys() - self._pinned_copies().keys(), kept)
        answer = self._pin_answer(model)
        answer.removed = [PinnedPlace(short(model), name or None) for name in removed]
        return answer

    def _pinned_copies(self) -> dict[tuple[str, str], Runner]:
        """Loaded models that pins keep, by backend and name, with the options that they have."""
        pins = self._residencies.pins.all
        return {
            (view.backend.id, each.model): told(each, view.backend) or Runner()
            for view in self._views()
            for each in view.residencies
            if each.model not in view.closing and serves_pin(view, each, pins)
        }

    def _let_go(self, unpinned: Iterable[tuple[str, str]], runners: Mapping[tuple[str, str], Runner]) -> None:
        """Have what no pin keeps any more stay as long as other models: an engine remembers what it was told."""
        for backend_id, model in sorted(unpinned):
            stays_s = self._keep_alive_s(backend_id)
            stays_s = max(stays_s, SOON_OVER_S) if stays_s >= 0 else stays_s  # less is not told to an engine
            self._dispatcher.feed(events.LoadWanted(model, backend_id, runners[backend_id, model], stays_s))

    def _pin_answer(self, model: str) -> PinAnswer:
        loaded_on = [
            view.backend.id
            for view in self._views()
            if any(shares(model, residency, view.backend) for residency in view.residencies)
        ]
        return PinAnswer(short(model), self.pins(model), [], loaded_on)

    # what there is

    def _views(self) -> tuple[BackendView, ...]:
        return self._dispatcher.scheduler.snapshot(self._dispatcher.clock()).backends

    def _runner(self, wish: ModelWish, model: str) -> Runner:
        """What a model shall be loaded with: an operator's context is meant as it is said, not rounded."""
        if wish.num_ctx is None:
            return normalise(Runner(), model, self._residencies.rules)
        runner = normalise(Runner(num_ctx=wish.num_ctx), model, self._residencies.rules)
        return msgspec.structs.replace(runner, num_ctx=wish.num_ctx, exact=True)

    def _checked(self, wish: ModelWish, *, may_be_down: bool) -> str:
        """The model's canonical name, if it and the backend are there.

        Raises:
            _Refused: they are not, or nothing can be loaded there.
        """
        model = canonical(wish.model)
        views = self._views()
        ollamas = [view for view in views if view.backend.engine is Engine.OLLAMA]
        if wish.num_ctx is not None and wish.num_ctx < 1:
            raise _Refused(HTTPStatus.BAD_REQUEST, ErrorAnswer("num_ctx is a number of tokens, 1 or more"))
        if wish.backend is not None:
            view = next((each for each in views if each.backend.id == wish.backend), None)
            if view is None:
                known = sorted(each.backend.id for each in ollamas)
                error = ErrorAnswer(f"no backend {wish.backend!r}", known, asked=wish.backend)
                raise _Refused(HTTPStatus.NOT_FOUND, error)
            if view.backend.engine is not Engine.OLLAMA:
                text = f"{wish.backend} is a {view.backend.engine.value}: its one model is always loaded"
                raise _Refused(HTTPStatus.CONFLICT, ErrorAnswer(text))
            if not may_be_down and view.health in (Health.DOWN, Health.STARTING):
                text = f"{wish.backend} is {view.health.value}: `slotgate status` says why"
                raise _Refused(HTTPStatus.CONFLICT, ErrorAnswer(text))
            if not may_be_down and view.draining:
                text = f"{wish.backend} is drained and loads nothing: `slotgate undrain {wish.backend}` first"
                raise _Refused(HTTPStatus.CONFLICT, ErrorAnswer(text))
            ollamas = [view]
        known_models = {name for view in ollamas for name in view.backend.models}
        if model not in known_models:
            place = f"{wish.backend} has" if wish.backend is not None else "no Ollama has"
            what = "no model" if wish.backend is not None else "a model"
            error = ErrorAnswer(f"{place} {what} {short(model)!r}", sorted(map(short, known_models)))
            error.asked = short(model)
            raise _Refused(HTTPStatus.NOT_FOUND, error)
        return model
