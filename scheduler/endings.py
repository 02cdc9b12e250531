"""When running requests are expected to end. Estimates only; owns no lease."""

from math import inf
from typing import NamedTuple

from scheduler.domain import BackendView
from scheduler.estimates import Estimates
from scheduler.leases import Lease, LeaseState, Ledger

LEAST_LEFT_TOKENS = 5
"""An answer that outran its estimate is expected to have so many tokens left."""
OUTRUN = 0.5
"""Lengths of answers have a long tail: one that is older than expected has this share of its age still before it."""


class Expected(NamedTuple):
    """What runs at one backend, in milliseconds from now."""

    by_nonce: dict[str, float]
    any_ms: float
    """Until some seat falls free: of so many, if ends were without memory. Infinity: nothing runs there."""
    least_ms: float
    """Nothing is to be had sooner."""


class Endings:
    """Many waiting requests ask the same at one moment: the answer is kept until something changed."""

    def __init__(self, ledger: Ledger, estimates: Estimates) -> None:
        self._ledger = ledger
        self._estimates = estimates
        self._known: dict[str, tuple[tuple[float, int, int], Expected]] = {}

    def expected(self, view: BackendView, now_s: float, version: int) -> Expected:
        """What runs at a backend.

        Args:
            view: the backend.
            now_s: the time.
            version: grows when a request begins or ends there; see also `changed`.
        """
        backend_id, key = view.backend.id, (now_s, view.seats_held, version)
        known = self._known.get(backend_id)
        if known is None or known[0] != key:
            known = self._known[backend_id] = key, self._look(view, now_s)
        return known[1]

    def changed(self, backend_id: str) -> None:
        """Something is known of a request there that was not: its first byte. Or the backend is gone."""
        self._known.pop(backend_id, None)

    def remaining_ms(self, lease: Lease, now_s: float, view: BackendView) -> float:
        """Time until a lease is expected to end."""
        work = lease.work
        if work is None:
            return inf
        step_ms = self._estimates.step_ms(lease.backend_id, lease.model or "", max(1, view.seats_held))
        answer_ms = work.output_tokens * step_ms
        if lease.committed:
            passed_ms = (now_s - work.first_byte_s) * 1000.0
        else:  # of an answer that comes as a whole nobody sees the first token
            passed_ms = (now_s - lease.claimed_s) * 1000.0 - work.prefill_ms
            if passed_ms < 0.0 or lease.streams:
                return max(0.0, -passed_ms) + answer_ms
        return max(LEAST_LEFT_TOKENS * step_ms, answer_ms - passed_ms, OUTRUN * passed_ms)

    def _look(self, view: BackendView, now_s: float) -> Expected:
        ends = {
            lease.nonce: self.remaining_ms(lease, now_s, view)
            for lease in self._ledger.at(view.backend.id)
            if lease.state is LeaseState.HELD
        }
        if not ends:
            return Expected(ends, inf, inf)
        any_ms = sum(ends.values()) / len(ends) ** 2
        return Expected(ends, any_ms, min(any_ms, *ends.values()))
