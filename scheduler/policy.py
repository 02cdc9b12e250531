"""A policy is data; deciding is one function. Owns how filters and costs combine; must not know events or leases."""

import msgspec

from scheduler.case import Case
from scheduler.costs import TERMS
from scheduler.domain import BackendView, Candidate, Decision, Health, Rejection, Request, Snapshot
from scheduler.filters import first_rejection


class Policy(msgspec.Struct, frozen=True):
    """Weights and thresholds."""

    version: int = 0
    """Grows with every change; a decision names the version that it was made under."""
    active_ms: float = 20.0
    """Cost of each seat in use at a backend: spreads what nothing else separates."""
    load_ms: float = 5000.0
    """Cost of a model that must be loaded first: an 8B Q4 model out of the page cache onto a GPU."""
    suspect_ms: float = 10_000.0
    """Cost of a backend that failed lately. Above `load_ms` and 64 active seats: used when nothing else has room."""
    cooling_ms: float = 20_000.0
    """Cost of a backend that failed just now, where the panic rule lets it through at all."""
    failures_until_down: int = 3
    """Missed probes and failed attempts in a row after which only a probe may find a backend usable again."""
    cool_down_s: float = 1.0
    """Pause after a failure; doubles with each further one until an attempt succeeds or the engine restarts."""
    cool_down_max_s: float = 30.0
    """Longest such pause."""
    refused_pause_s: float = 0.1
    """Pause after the store refused a claim for which its own numbers show room (epochs differ, say)."""
    elsewhere_fresh_s: float = 10.0
    """Seats of other proxies that the store has not confirmed for this long no longer bar claims: it checks them."""
    retry_ratio: float = 0.2
    """Retries allowed per request that arrived within the window, above the floor."""
    retry_floor_per_s: float = 10.0
    """Retries per second that are always allowed: enough to move what ran at one dead backend."""
    retry_window_s: float = 10.0
    """How far the retry budget looks back."""
    max_attempts: int = 3
    """Failed attempts after which a request is given up. LOADING and OVERLOADED do not count; the deadline does."""
    max_waiting: int = 1000
    """Requests that may wait; more are refused. Beside them, at most one per seat whose attempt or claim failed."""
    down_wait_s: float = 30.0
    """How long a request waits while no backend that has its model is alive."""
    overtake_s: float = 5.0
    """A request for several seats that waited this long is overtaken no more: a backend's seats are kept for it."""
    look_after_s: float = 1.5
    """Pause before looking whether an abandoned seat is idle: each look delays llama-server's own notice by 1 s."""
    abandoned_grace_s: float = 5.0
    """How long an abandoned seat counts as busy where the engine tells nothing about its slots."""
    look_after_stream_s: float = 0.2
    """The same where the answer had begun: engines notice at the next token that nobody reads any more."""
    abandoned_stream_grace_s: float = 0.5
    """The grace where the answer had begun. An Ollama freed the slot 4 ms after its client left mid-stream."""
    abandoned_limit_s: float = 120.0
    """The same where it does, but its reports fail to come or are full of other people's requests."""
    completions_window_s: float = 60.0
    """How far the estimate for Retry-After looks back."""
    retry_after_min_s: float = 1.0
    """Smallest Retry-After."""
    retry_after_max_s: float = 60.0
    """Largest Retry-After: the official OpenAI and Anthropic clients ignore more."""


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
