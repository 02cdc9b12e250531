"""Deciding is one function: owns how filters and costs combine. Must not know events or leases."""

from scheduler.case import Case
from scheduler.costs import TERMS
from scheduler.domain import BackendView, Candidate, Decision, Health, Rejection, Request, Snapshot
from scheduler.filters import first_rejection
from scheduler.policy import Policy

NO_COOLING = frozenset({"cooling"})
NO_TRIED = frozenset({"tried"})

_REACHABLE = frozenset({Rejection.COOLING, Rejection.NO_ROOM})


def decide(snapshot: Snapshot, request: Request, policy: Policy, tried: frozenset[str] = frozenset()) -> Decision:
    """Which backends could run the request now, best first, and why the others cannot.

    Filters first, then costs; equal costs go to the least recently used backend, never to the first of the list. Two
    rules soften the filters when nothing passes them, since a request refused for certain is worse than one that may
    fail:

    *Panic*: when each backend that could serve the request is cooling or suspect, cooling is ignored. A pause that the
    engine itself asked for (`cooling_firm`) is kept: it says when it can work, so trying earlier cannot help.

    *Again*: when each living backend was tried already, they may be tried again, after their cool-down.
    """
    alive = any(view.health in (Health.READY, Health.SUSPECT) for view in snapshot.backends)
    case = Case(request, policy, snapshot.now_s, tried, alive)
    passed: list[BackendView] = []
    rejections: dict[str, Rejection] = {}
    for view in snapshot.backends:
        reason = first_rejection(view, case)
        if reason is None:
            passed.append(view)
        else:
            rejections[view.backend.id] = reason
    if not passed and rejections:
        passed = _softened(snapshot, case, rejections)
    return Decision(request.id, _rank(passed, case), rejections, policy.version)


def _rank(views: list[BackendView], case: Case) -> tuple[Candidate, ...]:
    ranked: list[tuple[float, float, str, Candidate]] = []
    for view in views:
        terms_ms = {name: term(view, case) for name, term in TERMS.items()}
        cost_ms = sum(terms_ms.values())
        backend_id = view.backend.id
        ranked.append((cost_ms, view.last_used_s, backend_id, Candidate(backend_id, cost_ms, terms_ms)))
    ranked.sort()
    return tuple([entry[3] for entry in ranked])


def _softened(snapshot: Snapshot, case: Case, rejections: dict[str, Rejection]) -> list[BackendView]:
    """Apply the rules *panic* and *again*; takes the backends that pass out of `rejections`."""
    untried = [view for view in snapshot.backends if rejections[view.backend.id] in _REACHABLE]
    if not untried:
        views = [view for view in snapshot.backends if rejections[view.backend.id] is Rejection.TRIED]
        ignoring = NO_TRIED
    elif all(_is_doubtful(view, case) for view in untried):
        views = [view for view in untried if not view.cooling_firm]
        ignoring = NO_COOLING
    else:
        return []
    passed = []
    for view in views:
        reason = first_rejection(view, case, ignoring)
        if reason is None:
            del rejections[view.backend.id]
            passed.append(view)
        else:
            rejections[view.backend.id] = reason
    return passed


def _is_doubtful(view: BackendView, case: Case) -> bool:
    return view.health is Health.SUSPECT or (case.now_s < view.cooling_until_s and not view.cooling_firm)
