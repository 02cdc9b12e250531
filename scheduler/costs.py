"""What a request would cost at a backend, in milliseconds of GPU time. Knows nothing of who may take it.

Each term is a plain function; `TERMS` names them, and a decision shows every value. One unit for all: a term weighs as
much as the time it stands for, and no weight between 0 and 1 hides what is traded against what.
"""

from collections.abc import Callable

from scheduler.case import Case
from scheduler.domain import BackendView, Health
from scheduler.outlook import Fit

Term = Callable[[BackendView, Case, Fit], float]


def prefill(_view: BackendView, case: Case, fit: Fit) -> float:
    """Computing what is not cached of the prompt."""
    return case.policy.prefill_weight * fit.prefill_ms


def stall(view: BackendView, case: Case, fit: Fit) -> float:
    """That computing delays each request that runs there."""
    return case.policy.prefill_weight * case.policy.stall_weight * fit.prefill_ms * view.taken


def pending(_view: BackendView, case: Case, fit: Fit) -> float:
    """Prompts that are being computed there go first, for the most part."""
    return case.policy.pending_weight * fit.pending_ms


def active(view: BackendView, case: Case, _fit: Fit) -> float:
    """Each request that runs there slows this one, and is slowed by it."""
    return case.policy.active_ms * view.taken


def loss(_view: BackendView, case: Case, fit: Fit) -> float:
    """What the chosen slot loses may be asked for again."""
    return case.policy.loss_weight * fit.loss_ms


def copies(_view: BackendView, case: Case, fit: Fit) -> float:
    """What passes before the first token beside computing: copies to and from host memory, above all."""
    return case.policy.prefill_weight * fit.copy_ms


def suspect(view: BackendView, case: Case, _fit: Fit) -> float:
    """It failed lately: the time that a further failure would waste."""
    return case.policy.suspect_ms if view.health is Health.SUSPECT else 0.0


def cooling(view: BackendView, case: Case, _fit: Fit) -> float:
    """It failed just now. Only seen where the panic rule of `decide.decide` let a cooling backend through."""
    return case.policy.cooling_ms if case.now_s < view.cooling_until_s else 0.0


TERMS: dict[str, Term] = {
    "prefill": prefill,
    "stall": stall,
    "pending": pending,
    "active": active,
    "loss": loss,
    "copies": copies,
    "suspect": suspect,
    "cooling": cooling,
}
