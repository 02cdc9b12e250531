"""The journal of decisions: the last ones of this proxy, with what was predicted and what came of it.

Bounded in decisions and, since one about a large fleet is large, in the backends that they name. Owns no decision.
"""

import time
from collections import deque
from collections.abc import Callable

import msgspec

from proxy.explained import ExplainAnswer, ExplainedAnswer, ExplainedCandidate, ExplainedDecision
from proxy.obstacles import obstacles
from scheduler.domain import Decision, Measured, Outcome, Request, Snapshot

KEPT = 2000
"""Decisions that are remembered."""
KEPT_BACKENDS = 40_000
"""Backends that these name together: 2,000 decisions about up to 20 backends, fewer about more. Some 25 MB at most."""


class _Noted(msgspec.Struct, frozen=True):
    """One decision. Of those that let a request wait also what they saw: the numbers are worked out for who asks."""

    at_unix_s: float
    decision: Decision
    slot: int | None = None
    predicted: int | None = None
    holds_s: float | None = None
    seen: tuple[Request, Snapshot] | None = None


class _Entry:
    """What is known of one request."""

    __slots__ = ("decided", "ended_unix_s", "measured", "outcome")

    def __init__(self) -> None:
        self.decided: deque[_Noted] = deque()
        """Oldest first."""
        self.measured: Measured | None = None
        self.outcome: Outcome | None = None
        self.ended_unix_s: float | None = None


class Journal:
    """Remembers decisions. Each call takes constant time."""

    def __init__(self, kept: int = KEPT, backends: int = KEPT_BACKENDS, clock: Callable[[], float] = time.time) -> None:
        """`clock`: Unix seconds."""
        self._kept = kept
        self._most_backends = backends
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._order: deque[tuple[str, int]] = deque()
        """(Request, backends named) of every decision, oldest first."""
        self._backends = 0

    def __len__(self) -> int:
        """Decisions that are remembered now."""
        return len(self._order)

    def decided(self, request_id: str, decision: Decision, slot: int | None, predicted: int | None) -> None:
        """Note a decision: a request is sent to the best of its ranking, or refused if there is none.

        Args:
            request_id: as its client sees it; several decisions for one are attempts, or pieces of a batch.
            decision: why.
            slot: the slot that it is sent to; None: the engine's choice.
            predicted: tokens of its prompt that should be cached there; None: nobody can tell.
        """
        self._note(request_id, _Noted(self._clock(), decision, slot, predicted))

    def waits(
        self, request_id: str, decision: Decision, holds_s: float | None, request: Request, snapshot: Snapshot
    ) -> None:
        """Note a decision that let a request wait.

        Args:
            request_id: as its client sees it.
            decision: why.
            holds_s: how long it leaves seats to others at most, for a backend that suits it better; None: it does not.
            request: as it was decided about.
            snapshot: the fleet, as it was then.
        """
        seen = msgspec.structs.replace(request, prompt=None), snapshot  # a prompt's hashes may be some 100 KB
        self._note(request_id, _Noted(self._clock(), decision, holds_s=holds_s, seen=seen))

    def _note(self, request_id: str, noted: _Noted) -> None:
        entry = self._entries.get(request_id)
        if entry is None:
            entry = self._entries[request_id] = _Entry()
        entry.decided.append(noted)
        decision = noted.decision
        named = len(decision.ranking) + len(decision.rejections)
        self._order.append((request_id, named))
        self._backends += named
        while len(self._order) > self._kept or (self._backends > self._most_backends and len(self._order) > 1):
            self._forget_oldest()

    def ended(self, request_id: str, measured: Measured | None, outcome: Outcome) -> None:
        """Note how a request ended. One without a decision, or whose decisions are forgotten, is ignored."""
        entry = self._entries.get(request_id)
        if entry is not None:
            entry.measured = measured
            entry.outcome = outcome
            entry.ended_unix_s = self._clock()

    def explain(self, request_id: str) -> ExplainAnswer | None:
        """Everything that is known of a request; None if that is nothing."""
        entry = self._entries.get(request_id)
        if entry is None:
            return None
        return ExplainAnswer(
            id=request_id,
            decisions=[_explained(noted) for noted in entry.decided],
            outcome=None if entry.outcome is None else entry.outcome.value,
            ended_at_unix_s=entry.ended_unix_s,
            answer=None if entry.measured is None else _answer(entry.measured),
        )

    def _forget_oldest(self) -> None:
        request_id, named = self._order.popleft()
        self._backends -= named
        decided = self._entries[request_id].decided
        decided.popleft()
        if not decided:
            del self._entries[request_id]


def _explained(noted: _Noted) -> ExplainedDecision:
    if noted.seen is None:
        return explained(noted.at_unix_s, noted.decision, noted.slot, noted.predicted)
    told = explained_wait(noted.at_unix_s, noted.decision, noted.holds_s, *noted.seen)
    told.tenant_full = bool(told.ranking) and noted.holds_s is None  # else it would have gone
    return told


def explained_wait(
    at_unix_s: float, decision: Decision, holds_s: float | None, request: Request, snapshot: Snapshot
) -> ExplainedDecision:
    """A decision that let a request wait, with what stood in its way in this snapshot."""
    told = explained(at_unix_s, decision, None, None)
    told.waits, told.holds_s = True, holds_s
    told.details = obstacles(decision, request, snapshot)
    return told


def explained(at_unix_s: float, decision: Decision, slot: int | None, predicted: int | None) -> ExplainedDecision:
    """A decision in the shape that who asks gets; see `Journal.decided` for the arguments."""
    return ExplainedDecision(
        at_unix_s=at_unix_s,
        policy_version=decision.policy_version,
        ranking=[
            ExplainedCandidate(
                backend=candidate.backend_id,
                cost_ms=candidate.cost_ms,
                terms_ms=candidate.terms_ms,
                slot=candidate.slot,
                reused_tokens=candidate.reused_tokens,
                fresh_tokens=candidate.fresh_tokens,
            )
            for candidate in decision.ranking
        ],
        rejections={backend_id: reason.value for backend_id, reason in decision.rejections.items()},
        slot=slot,
        predicted_cached_tokens=predicted,
        details=decision.details,
    )


def _answer(measured: Measured) -> ExplainedAnswer:
    return ExplainedAnswer(
        prompt_tokens=measured.prompt_tokens,
        cached_tokens=measured.cached_tokens,
        output_tokens=measured.output_tokens,
        prompt_ms=measured.prompt_ms,
        output_ms=measured.output_ms,
        first_byte_ms=measured.first_byte_ms,
        slot=measured.slot,
    )
