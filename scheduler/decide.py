"""Deciding is one function: owns how filters and costs combine. Must not know events or leases."""

from scheduler.case import Case
from scheduler.costs import TERMS
from scheduler.domain import BackendView, Candidate, Decision, Health, Rejection, Request, Snapshot
from scheduler.filters import first_rejection
from scheduler.outlook import NOTHING, Fit, Outlook, Reuses
from scheduler.policy import Policy
from scheduler.residencies import why_not_resident

NO_COOLING = frozenset({"cooling"})
NO_TRIED = frozenset({"tried"})

_REACHABLE = frozenset({Rejection.COOLING, Rejection.NO_ROOM})


def decide(
    snapshot: Snapshot,
    request: Request,
    policy: Policy,
    tried: frozenset[str] = frozenset(),
    outlook: Outlook | None = None,
    memory: Reuses | None = None,
) -> Decision:
    """Which backends could run the request now, best first, and why the others cannot.

    Filters first, then costs; equal costs go to the least recently used backend, never to the first of the list. Two
    rules soften the filters when nothing passes them, since a request refused for certain is worse than one that may
    fail:

    *Panic*: when each backend that could serve the request is cooling or suspect, cooling is ignored. A pause that the
    engine itself asked for (`cooling_firm`) is kept: it says when it can work, so trying earlier cannot help.

    *Again*: when each living backend was tried already, they may be tried again, after their cool-down.

    Args:
        snapshot: the fleet.
        request: what is to be placed.
        policy: weights and thresholds.
        tried: backends that failed the request.
        outlook: what backends hold and how fast they are; None: nothing is known of that.
        memory: what was read from the outlook's mirrors for this request before; filled in.
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
    ranked: list[tuple[float, float, str, Candidate]] = []
    details: dict[str, str] = {}
    for view in passed:
        fit = NOTHING
        if outlook is not None:
            fit = outlook.fit(view, case, memory if memory is not None else {})
            if is_computing(view, case, fit, outlook):
                rejections[view.backend.id] = Rejection.PREFILLING
                continue
        candidate = cost(view, case, fit)
        ranked.append((candidate.cost_ms, view.last_used_s, view.backend.id, candidate))
    ranked.sort()
    for view in snapshot.backends if Rejection.NOT_LOADED in rejections.values() else ():
        if rejections.get(view.backend.id) is Rejection.NOT_LOADED:
            _explain(view, case, snapshot, outlook, rejections, details)
    return Decision(request.id, tuple([entry[3] for entry in ranked]), rejections, details, policy.version)


def cost(view: BackendView, case: Case, fit: Fit) -> Candidate:
    """What the request would cost at a backend that may take it."""
    terms_ms = {name: term(view, case, fit) for name, term in TERMS.items()}
    return Candidate(view.backend.id, sum(terms_ms.values()), terms_ms, fit.slot, fit.reused_tokens, fit.fresh_tokens)


def _explain(
    view: BackendView,
    case: Case,
    snapshot: Snapshot,
    outlook: Outlook | None,
    rejections: dict[str, Rejection],
    details: dict[str, str],
) -> None:
    """What stands in the way of a model that is not resident: memory, or only that nobody has loaded it yet."""
    backend_id, model = view.backend.id, case.request.model
    if outlook is not None and not view.loading:
        refusal = outlook.loads.refusal(view, model, case.now_s, snapshot.backends)
        if refusal is not None:
            rejections[backend_id], details[backend_id] = Rejection.NO_MEMORY, refusal
            return
    details[backend_id] = why_not_resident(view, case.request)


def is_computing(view: BackendView, case: Case, fit: Fit, outlook: Outlook) -> bool:
    """Whether the backend computes as many prompts as it may, and this one would be a further one."""
    policy = case.policy
    if not policy.max_prefills or fit.fresh_tokens < max(1, policy.prefill_counts_tokens):
        return False
    return outlook.prefills(view.backend.id, policy.prefill_counts_tokens, case.now_s) >= policy.max_prefills


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
