"""Which models are loaded, and when, for what waits. Asks `planning` where, and `loading` to do it.

A request never goes to an engine that would have to load its model. So for what waits and is resident nowhere that it
could run, one copy is planned; where it is resident but full, a further one if waiting takes longer than loading, and
if it pays beside what would have to go. Tickets stay late-bound: whoever has the model first gets them.

It looks when something may have changed, and while something waits for a load also now and then, since some rules are
about time. With many backends a look is for a part of what waits, and the rest has its turn at the next ones.

A request whose model no backend could load is refused with what the engine said (`LOAD_FAILED`).

*Other proxies* see the same line. The proxy whose request is the oldest of its kind decides; the others only once that
took `OTHERS_FIRST_S`.
"""

from collections.abc import Callable, Iterable
from math import inf

import msgspec

from scheduler.deadlines import Deadlines
from scheduler.demand import Demand, Wish
from scheduler.domain import Backend, BackendView, Operation, Rejection, Request
from scheduler.effects import Effect
from scheduler.load_start import LoadStart
from scheduler.loading import Loading, UnderWay
from scheduler.matching import Matching
from scheduler.operators import Operators
from scheduler.outlook import Outlook
from scheduler.planning import Scene, Want
from scheduler.policy import Policy
from scheduler.replica import Replica
from scheduler.residencies import coming, loads, needs_residency, room_for
from scheduler.runner import suits
from scheduler.waiting import Kind, Ticket, WaitingLine, kind_of

TICK_S = 0.5
"""Pause between two looks while something waits for a load and nothing happens."""
LEAST_PAUSE_S = 0.05
"""Nor is there a second look sooner than this, unless something new has nowhere to run."""
OTHERS_FIRST_S = 1.0
"""How long another proxy has to decide a load for its own request."""
PAIRS_AT_ONCE = 128
"""What waits, by what it wants, times backends: one look goes through so many, in a few milliseconds."""


Asking = tuple[Wish, frozenset[str]]
"""What is wanted, and the backends that failed whoever wants it."""


class Waiting(msgspec.Struct):
    """Tickets that want the same."""

    wish: Wish
    tried: frozenset[str]
    """Backends that failed them."""
    backends: frozenset[str]
    """That may ever serve them."""
    oldest: Ticket
    rank: int
    count: int = 0

    @property
    def asking(self) -> Asking:
        """What sets them apart from others."""
        return self.wish, self.tried


class Planner:
    """What shall be loaded."""

    def __init__(
        self,
        policy: Policy,
        replica: Replica,
        matching: Matching,
        deadlines: Deadlines,
        outlook: Outlook,
        loading: Loading,
        effects: list[Effect],
        reject: Callable[[Ticket, Rejection, str], None],
    ) -> None:
        self._replica = replica
        self._matching = matching
        self._deadlines = deadlines
        self._outlook = outlook
        self.loading = loading
        self._reject = reject
        self._demand = Demand(policy.demand_window_s)
        self._start = LoadStart(policy, replica, outlook, loading, self._demand)
        self.operators = Operators(replica, loading, self._start, effects)
        self._last_s = -inf
        self._had_turn: set[Asking] = set()
        """Whom looks were for since all had their turn."""

    @property
    def obstacles(self) -> dict[str, dict[str, str]]:
        """By model and backend: why what is wanted is not loaded there, as of the last look."""
        return self._start.obstacles

    def change(self, policy: Policy) -> None:
        """Another policy is in force."""
        self._demand.change(policy.demand_window_s)
        self._start.policy = self.loading.policy = policy

    def asked(self, request: Request, now_s: float) -> None:
        """A request came, here or to another proxy: it counts as demand for its model."""
        model = request.model
        if model is None or request.cloud or request.operation is Operation.UNLOAD:
            return
        for state in self._replica.states():
            if loads(state.backend) and model in state.backend.models:
                estimates, backend_id = self._outlook.estimates, state.backend.id
                work_ms = estimates.prefill_ms(backend_id, model, self._outlook.tokens(request))
                if request.seats:
                    output = estimates.output_tokens(model, request.tenant, request.max_output_tokens)
                    limit = max(1, state.backend.running_limit)
                    work_ms += output * estimates.step_ms(backend_id, model, limit) / limit
                self._demand.asked(Wish(model, request.runner), max(1.0, work_ms), now_s)
                return

    def void(self, backend_id: str, epoch: int | None = None) -> None:
        """The engine is gone, and what was under way there with it."""
        self.operators.void(backend_id)
        self._start.void(backend_id)
        self.loading.void(backend_id, epoch)

    def step(self, now_s: float) -> None:
        """Something happened: plan, if there is anything to plan and it is time to."""
        line = self._matching.line
        newest, line.newest = _first_of_its_kind(line), None
        self.operators.unload(now_s)
        if not (line or self.operators.any or self.loading.busy) or not self._replica.any_loads:
            self._deadlines.cancel(("plan", ""))
            return
        self.loading.proceed(now_s)
        urgent = self.operators.urgent or self.loading.news or newest is not None
        soon_s = self._last_s + LEAST_PAUSE_S
        if not urgent and now_s < soon_s:
            if self._deadlines.at_s(("plan", "")) > soon_s:
                self._deadlines.set(("plan", ""), soon_s)
            return
        self.operators.urgent = self.loading.news = False
        self._last_s = now_s
        soon = self._plan(now_s, newest)
        if self._had_turn:
            self._deadlines.set(("plan", ""), now_s + LEAST_PAUSE_S)
        elif soon:
            self._deadlines.set(("plan", ""), now_s + TICK_S)
        else:
            self._deadlines.cancel(("plan", ""))

    def _plan(self, now_s: float, newest: Asking | None = None) -> bool:
        """Decide what loads can be; returns whether to look again soon. `newest` has its turn first."""
        scene = self._start.scene(self.operators.pins, now_s)
        waiting = _waiting(self._matching)
        wishes = {each.wish for each in waiting} | self.operators.wishes()
        soon = [self._serve(each, scene) for each in self._turn(waiting, newest, len(scene.views))]
        soon.append(self.operators.serve(scene))
        for load in [load for load in self.loading if not load.owner and load.closing]:
            state = self._replica.get(load.backend_id)
            if state is None or not (state.usable and self._is_wanted(load, state.backend, wishes)):
                self.loading.give_up(load)
        return any(soon)

    def _turn(self, waiting: list[Waiting], newest: Asking | None, backends: int) -> list[Waiting]:
        """Whom this look is for."""
        if not self._had_turn:
            self._start.obstacles.clear()
        most = max(1, PAIRS_AT_ONCE // max(1, backends))
        left = [each for each in waiting if each.asking not in self._had_turn] or waiting
        left = sorted(left, key=lambda each: each.asking != newest)
        if len(left) <= most:
            self._had_turn.clear()
            return left
        self._had_turn.update(each.asking for each in left[:most])
        return left[:most]

    def _is_wanted(self, load: UnderWay, backend: Backend, wishes: Iterable[Wish]) -> bool:
        new = coming(load.model, load.runner, backend)
        return any(suits(wish.model, wish.runner, new, backend) for wish in wishes)

    def _serve(self, waiting: Waiting, scene: Scene) -> bool:
        """Load a model for what waits, if that is to be; returns whether to look again soon."""
        wish, oldest, now_s = waiting.wish, waiting.oldest, scene.now_s
        views = [view for view in scene.views if view.backend.id in waiting.backends - waiting.tried]
        there = [view for view in views if _could_run(view, oldest.request)]
        least = oldest.request.least_seats
        if any(room_for(view, oldest.request) >= least and now_s >= view.cooling_until_s for view in there):
            return False  # it only holds for a better one, or its turn comes
        under_way = self._start.under_way(wish, views)
        copies = len(there) + len(under_way)
        if not copies and self._refuse(waiting, views, now_s):
            return False
        if self._start.is_unseen(views, wish.model, now_s) or (oldest.owner and now_s - oldest.order < OTHERS_FIRST_S):
            return True
        wait_ms = (now_s - oldest.order) * 1000.0
        if copies:
            beyond = max(0, waiting.count - sum(view.backend.running_limit for view in under_way))
            expected_ms = beyond * self._demand.work_ms(wish, now_s) / copies
            wait_ms = expected_ms if under_way else max(wait_ms, expected_ms)
        candidates = [view for view in views if loads(view.backend) and view not in there]
        want = Want(wish, oldest.request.keep_alive_s, tried=waiting.tried, drains=True, copies=copies, wait_ms=wait_ms)
        return not self._start.begin(want, candidates, scene, oldest.request.id)

    def _refuse(self, waiting: Waiting, views: list[BackendView], now_s: float) -> bool:
        """Refuse tickets of ours whose model every backend failed to load; returns whether it is so."""
        candidates = [view for view in views if loads(view.backend)]
        failed = [self._start.failed(view, waiting.wish, now_s) for view in candidates]
        known = [each for each in failed if each is not None]
        if not known or len(known) < len(candidates) or len(candidates) < len(views):
            return False
        detail = max(known, key=lambda each: each.at_s).detail
        line = self._matching.line
        for kind, group in list(line.groups.items()):
            if _asking(kind) != waiting.asking:
                continue
            for ticket in [ticket for ticket in group if not ticket.owner]:
                self._matching.remove(ticket)
                self._reject(ticket, Rejection.LOAD_FAILED, detail)
        return True


def _waiting(matching: Matching) -> list[Waiting]:
    """What waits and may need a load: the highest priorities first, then the oldest."""
    found: dict[Asking, Waiting] = {}
    for kind, group in matching.line.groups.items():
        asking = _asking(kind)
        if asking is None:
            continue
        for lane, queue in group.queues.items():
            if kind.seats and matching.at_cap(lane.tenant):
                continue
            head = queue.head()
            each = found.get(asking)
            if each is None:
                each = found[asking] = Waiting(*asking, group.backends, head, lane.rank)
            each.count += len(queue)
            each.backends |= group.backends
            each.rank = min(each.rank, lane.rank)
            if head.order < each.oldest.order:
                each.oldest = head
    return sorted(found.values(), key=lambda each: (each.rank, each.oldest.order))


def _asking(kind: Kind) -> Asking | None:
    """What tickets of a kind want, and who failed them; None: nothing needs to be loaded for them."""
    if kind.model is None or kind.cloud or kind.operation is Operation.UNLOAD:
        return None
    return Wish(kind.model, kind.runner), kind.tried


def _could_run(view: BackendView, request: Request) -> bool:
    """Whether a request runs there as soon as there is room."""
    return not needs_residency(request, view.backend) or room_for(view, request) >= 0


def _first_of_its_kind(line: WaitingLine) -> Asking | None:
    """What the newest ticket wants, if that is resident nowhere and nobody else waits for it."""
    newest = line.newest
    group = line.groups.get(kind_of(newest)) if newest is not None else None
    if newest is None or group is None or any(each is not newest for each in group) or not _has_nowhere(newest):
        return None
    return _asking(group.kind)


def _has_nowhere(ticket: Ticket) -> bool:
    """Whether a ticket's model is not resident anywhere that it could run."""
    if ticket.decision is None:
        return False
    reasons = set(ticket.decision.rejections.values())
    return bool(reasons & {Rejection.NOT_LOADED, Rejection.NO_MEMORY}) and not reasons & {
        Rejection.NO_ROOM, Rejection.PREFILLING,
    }  # fmt: skip
