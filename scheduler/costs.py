"""What a request would cost at a backend, in milliseconds of GPU time. Knows nothing of who may take it.

Each term is a plain function; `TERMS` names them, and a decision shows every value. One unit for all: a term weighs as
much as the time it stands for, and no weight between 0 and 1 hides what is traded against what.
"""

from collections.abc import Callable

from scheduler.case import Case
from scheduler.domain import BackendView, Engine, Health

Term = Callable[[BackendView, Case], float]


def active(view: BackendView, case: Case) -> float:
    """Each request that runs there slows this one, and is slowed by it."""
    return case.policy.active_ms * (view.seats_leased + view.seats_elsewhere + view.foreign_busy)


def load(view: BackendView, case: Case) -> float:
    """The engine must load the model first. llama-server has loaded its model before it is ready at all."""
    model = case.request.model
    if model is None or view.backend.engine is Engine.LLAMA_SERVER:
        return 0.0
    for residency in view.residencies:
        if residency.model == model:
            return 0.0
    return case.policy.load_ms


def suspect(view: BackendView, case: Case) -> float:
    """It failed lately: the time that a further failure would waste."""
    return case.policy.suspect_ms if view.health is Health.SUSPECT else 0.0


def cooling(view: BackendView, case: Case) -> float:
    """It failed just now. Only seen where the panic rule of `decide.decide` let a cooling backend through."""
    return case.policy.cooling_ms if case.now_s < view.cooling_until_s else 0.0


TERMS: dict[str, Term] = {"active": active, "load": load, "suspect": suspect, "cooling": cooling}
