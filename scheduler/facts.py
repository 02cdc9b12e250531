"""What happens to backends: folds facts (probes, the store's numbers, failed attempts) into the replica.

Knows nothing of requests; where a fact leaves claims without a backend, it returns the ids of their requests.
"""

from math import inf

import msgspec

from scheduler.deadlines import Deadlines
from scheduler.domain import Backend, Failure, Measured, Report, Request
from scheduler.effects import Effect, HealthChanged, Look, SlotChoice
from scheduler.events import ClaimRefused, GpuReported, OccupancyReported
from scheduler.health import DRAINING_AFTER, Life, Signal
from scheduler.leases import Lease
from scheduler.matching import Matching
from scheduler.outlook import Outlook
from scheduler.policy import Policy
from scheduler.replica import BackendState, Replica
from scheduler.seats import Seats

NOT_NOW = frozenset({Failure.LOADING, Failure.OVERLOADED})
"""Failures by which a healthy engine says: later."""


SLOT_REFUSED_S = 0.1
"""How long a slot that the store refused is not named: by then we have heard whose it is."""


class Facts:
    """Everything that changes the replica, except leases."""

    def __init__(
        self,
        policy: Policy,
        replica: Replica,
        seats: Seats,
        matching: Matching,
        deadlines: Deadlines,
        effects: list[Effect],
        outlook: Outlook | None = None,
    ) -> None:
        self.policy = policy
        self._outlook = outlook or Outlook(replica.ledger)
        self._replica = replica
        self._seats = seats
        self._matching = matching
        self._deadlines = deadlines
        self._effects = effects
        self.tuned: dict[str, str | None] = {}
        """The model by which the running limit of a backend was tuned last."""

    def changed(self, backend: Backend, now_s: float) -> list[str]:
        """A backend joined, or its facts changed. An epoch older than the known one: stale, dropped."""
        state = self._replica.get(backend.id)
        orphans: list[str] = []
        if state is None:
            state = self._replica.join(backend)
        elif backend == state.told or backend.epoch < state.backend.epoch:
            return []
        elif backend.epoch > state.backend.epoch:
            orphans = self._seats.void(backend.id, now_s)
            self._start_anew(state)
            state.life = Life(state.life.condition, state.life.draining)
        elif (backend.slots, backend.host_cache_tokens) != (state.told.slots, state.told.host_cache_tokens):
            self._outlook.resized(backend.id)
        had_sight = state.reports_slots
        state.told = state.backend = backend
        if had_sight and not state.reports_slots:
            self._seats.lost_sight(backend.id, self.policy, now_s)
        self._outlook.changed(backend)
        self.tune_limit(backend.id, min(backend.models, default=None))
        self._shake(state)
        return orphans

    def left(self, backend_id: str, now_s: float) -> list[str]:
        """A backend is gone for good."""
        state = self._replica.get(backend_id)
        if state is None:
            return []
        orphans = self._seats.void(backend_id, now_s)
        self._start_anew(state)
        self._outlook.left(backend_id)
        self._replica.leave(backend_id)
        self.tuned.pop(backend_id, None)
        self._matching.shake()
        return orphans

    def signalled(self, backend_id: str, signal: Signal, now_s: float, because: str = "") -> list[str]:
        """A signal moves a backend through its life."""
        state = self._replica.get(backend_id)
        if state is None:
            return []
        before = state.life
        state.life = before.after(signal, self.policy.failures_until_down)
        if signal in DRAINING_AFTER:
            state.draining_since_s = now_s
        orphans: list[str] = []
        if signal is Signal.EXITED:
            orphans = self._seats.void(backend_id, now_s)
        if signal is Signal.EXITED or signal is Signal.STARTED:
            self._start_anew(state)
        if state.life.health is not before.health:
            self._effects.append(HealthChanged(backend_id, before.health, state.life.health, because or signal.value))
        if (state.life.condition, state.life.draining) != (before.condition, before.draining):
            self._shake(state)
        return orphans

    def reported(self, report: Report, now_s: float) -> None:
        """A look came back. Of another epoch, or begun before the last accepted one: dropped."""
        backend_id = report.backend_id
        state = self._replica.get(backend_id)
        if state is None or report.epoch != state.backend.epoch or report.asked_at_s < state.report_asked_s:
            return
        before = state.book.kinds
        for nonce in state.learn_report(report, self._replica.ledger, now_s):
            self._seats.seen_idle(nonce, now_s)
        if report.busy_slots is not None and self._seats.any_abandoned(backend_id):
            self._effects.append(Look(backend_id, now_s + self.policy.look_after_s))
        as_thought = self._outlook.reported(state.backend, report.slots, report.asked_at_s)
        ours = not (state.seats_unknown or self._outlook.naming.engine_chooses(backend_id))
        if ours and not as_thought:
            self.doubt_slots(backend_id, "a slot is busy that is idle by our account")
        elif state.slots_doubted and report.busy_slots == 0:
            state.slots_doubted = ""  # the engine is idle: both know what runs on which slot, nothing
        self._outlook.loaded(state.backend, state.book.residencies, report.asked_at_s)
        self._note_naming(state, "it reports use by others" if state.foreign_busy or state.deferred else "its report")
        self._replica.touch(backend_id)
        self._matching.free(backend_id)
        if state.book.kinds != before:
            self._matching.free_all()  # with one less that has a model, those that failed may be tried again

    def gpu_reported(self, event: GpuReported) -> None:
        """A look at a card's memory."""
        if self._replica.get(event.backend_id) is not None:
            self._outlook.loads.sampled(event.backend_id, event.memory, event.asked_at_s)
            self._matching.free(event.backend_id)

    def occupancy(self, event: OccupancyReported, now_s: float) -> None:
        """The store's numbers. Asked for before we last heard from the store: dropped.

        Claims of ours that were granted or released since do not matter: the number is about the others. A refused
        claim does: it brought a newer number.
        """
        state = self._replica.get(event.backend_id)
        if state is None:
            return
        is_newer = event.asked_at_s >= state.draining_since_s  # else another wish was heard here meanwhile
        if is_newer and event.draining is not None and event.draining is not state.life.draining:
            signal = Signal.DRAIN if event.draining else Signal.UNDRAIN
            self.signalled(event.backend_id, signal, now_s, f"{signal.value}: the store says so")
        if event.asked_at_s >= state.elsewhere_asked_s:
            self._learn_elsewhere(state, event, event.asked_at_s, event.asked_at_s, now_s)
            self._note_elsewhere(state)

    def refused(self, lease: Lease, event: ClaimRefused, now_s: float, *, alone: bool = True) -> None:
        """The store refused a claim of the present epoch. Whatever the reason, it must not be repeated at once.

        But where only the slot was refused, another one is tried, and where a seat fell free meanwhile, that one is.
        `alone`: no other proxy tells us what it holds.
        """
        state = self._replica.get(lease.backend_id)
        if state is None:
            return
        self._learn_elsewhere(state, event, now_s, lease.claimed_s, now_s, passing=not alone)
        if alone or event.kept:
            self._note_elsewhere(state)
        if event.draining and state.draining_since_s <= lease.claimed_s:
            self.signalled(lease.backend_id, Signal.DRAIN, now_s, "drain: the store says so")
        elif event.slot_refused and lease.work is not None and lease.work.slot is not None:
            nonce = self._outlook.naming.refuse(lease.backend_id, lease.work.slot)
            self._deadlines.set((f"slot {nonce}", lease.backend_id), now_s + SLOT_REFUSED_S)
        elif state.ended_seats(lease.claimed_s) and not event.kept:
            pass  # what was in its way is gone
        elif self._replica.view(lease.backend_id).room >= lease.seats:
            state.pause(now_s, self.policy.refused_pause_s)
            self._cooled(state)

    def granted(self, lease: Lease, request: Request, now_s: float) -> None:
        """A request goes to a backend."""
        view = self._replica.view(lease.backend_id)
        self._outlook.granted(lease, view, request, now_s)
        if lease.work is not None and lease.work.prefill_ms and not lease.streams:
            # Nobody will see the first token: by then the prompt does not count any more (`Outlook.prefills`).
            computed_s = lease.granted_s + lease.work.prefill_ms / 1000.0 + 0.001
            self._deadlines.set((f"prefill {lease.nonce}", lease.backend_id), computed_s)

    def learned(self, lease: Lease, request: Request, measured: Measured, now_s: float) -> None:
        """An answer is complete. If another engine runs there by now, it says nothing."""
        state = self._replica.get(lease.backend_id)
        if state is None or state.backend.epoch != lease.epoch:
            return
        running = self._replica.view(lease.backend_id).seats_held
        if not self._outlook.done(lease, state.backend, request, measured, running, now_s):
            self.doubt_slots(lease.backend_id, f"slot {measured.slot} answered in place of the one named")
        self.tune_limit(lease.backend_id, request.model)

    def tune_limit(self, backend_id: str, model: str | None) -> None:
        """Step times were learned: let as many requests run as the policy's time per token allows."""
        state = self._replica.get(backend_id)
        if state is None or not state.told.auto_limit:
            return
        self.tuned[backend_id] = model
        limit = self._outlook.running_limit(state.told, model, self.policy.token_target_ms)
        if limit != state.backend.running_limit:
            state.backend = msgspec.structs.replace(state.told, running_limit=limit)
            self._replica.touch(backend_id)
            self._matching.free(backend_id)

    def tune_limits(self) -> None:
        """Another time per token is allowed: tune the limits of all backends, each by the model that it was last."""
        for backend_id, model in self.tuned.items():
            self.tune_limit(backend_id, model)

    def doubt_slots(self, backend_id: str, because: str) -> None:
        """What runs on which slot is not as we thought: leave the choice to the engine until it was seen idle."""
        state = self._replica.get(backend_id)
        if state is not None and not state.slots_doubted:
            state.slots_doubted = because
            self._replica.touch(backend_id)
            self._note_naming(state, because)

    def _note_naming(self, state: BackendState, because: str) -> None:
        if state.names_slots is not state.named_slots:
            state.named_slots = state.names_slots
            self._effects.append(SlotChoice(state.backend.id, state.names_slots, because))

    def unconfirmed(self, backend_id: str) -> None:
        """The store has not confirmed for long what other proxies hold: let claims find out."""
        state = self._replica.get(backend_id)
        if state is not None:
            state.learn_elsewhere(0, state.elsewhere_asked_s)
            state.seats_kept = 0
            self._note_elsewhere(state)
            self._replica.touch(backend_id)
            self._matching.free(backend_id)

    def failed(self, backend_id: str, epoch: int, failure: Failure, now_s: float) -> None:
        """An attempt failed at an engine. If another one runs there by now, it is not to blame."""
        state = self._replica.get(backend_id)
        if state is None or state.backend.epoch != epoch:
            return
        if failure in NOT_NOW:
            state.pause(now_s, self.policy.cool_down_s)
        else:
            self.signalled(backend_id, Signal.FAILED, now_s, f"an attempt failed: {failure.value}")
            state.fail(now_s, self.policy.cool_down_s, self.policy.cool_down_max_s)
        self._cooled(state)

    def answered(self, backend_id: str, epoch: int, now_s: float) -> None:
        """An attempt got its first byte."""
        state = self._replica.get(backend_id)
        if state is None or state.backend.epoch != epoch or not (state.strikes or state.life.failures):
            return
        self.signalled(backend_id, Signal.SUCCEEDED, now_s, "an attempt succeeded")
        if state.recover():
            self._deadlines.cancel(("cool", backend_id))
            self._shake(state)

    def _learn_elsewhere(
        self,
        state: BackendState,
        told: OccupancyReported | ClaimRefused,
        asked_at_s: float,
        since_s: float,
        now_s: float,
        *,
        passing: bool = False,
    ) -> None:
        backend_id = state.backend.id
        leases = self._replica.ledger.at(backend_id)
        known = sum(lease.seats for lease in leases if lease.owner and lease.granted_s != inf)
        before = state.seats_unknown or state.seats_kept
        state.seats_kept = told.seats_elsewhere if told.kept else 0
        seats = 0 if told.kept else told.seats_elsewhere  # what others use of those that are kept, they told
        state.learn_elsewhere(seats, asked_at_s, known, since_s, passing=passing)
        if state.seats_unknown or state.seats_kept:
            self._deadlines.set(("fresh", backend_id), now_s + self.policy.elsewhere_fresh_s)
        elif before:
            self._deadlines.cancel(("fresh", backend_id))
        self._replica.touch(backend_id)
        self._matching.free(backend_id)

    def _note_elsewhere(self, state: BackendState) -> None:
        because = "other proxies use it" if state.unaccounted else "no other proxy uses it any more"
        self._note_naming(state, because)

    def _cooled(self, state: BackendState) -> None:
        if state.cooling_until_s != -inf:
            self._deadlines.set(("cool", state.backend.id), state.cooling_until_s)
        self._shake(state)

    def _start_anew(self, state: BackendState) -> None:
        state.reset()
        self._deadlines.cancel(("cool", state.backend.id))
        self._deadlines.cancel(("fresh", state.backend.id))

    def _shake(self, state: BackendState) -> None:
        self._replica.touch(state.backend.id)
        self._matching.shake()
