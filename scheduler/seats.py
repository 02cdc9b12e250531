"""Taking seats and giving them back: the ledger's arrows together with the effects that they owe the store.

Knows nothing of requests' fate; whoever ends a request says here whether its seat is free or only abandoned.
"""

from collections.abc import Callable

from scheduler.deadlines import Deadlines
from scheduler.domain import Backend, Candidate, Measured, Request
from scheduler.effects import Claim, Effect, Look, Release
from scheduler.leases import Lease, LeaseState, Ledger
from scheduler.outlook import Outlook
from scheduler.policy import Policy
from scheduler.replica import Replica
from scheduler.residencies import room_for
from scheduler.telling import Telling

_ANY = Policy()


class Seats:
    """The seats that this proxy holds at all backends.

    Each lease leaves through `_gone`, the one place that emits Release: once per granted claim, never otherwise.
    """

    def __init__(
        self,
        ledger: Ledger,
        replica: Replica,
        deadlines: Deadlines,
        effects: list[Effect],
        on_freed: Callable[[str], None],
        outlook: Outlook | None = None,
        telling: Telling | None = None,
    ) -> None:
        self._ledger = ledger
        self._replica = replica
        self._deadlines = deadlines
        self._effects = effects
        self._on_freed = on_freed
        self._outlook = outlook or Outlook(ledger)
        self._telling = telling or Telling(effects)
        self._claims = 0

    def claim(
        self,
        request: Request,
        backend: Backend,
        now_s: float,
        candidate: Candidate | None = None,
        policy: Policy = _ANY,
    ) -> Lease:
        """Keep seats here and ask the store for them: all that it wants, or as many as there are if it is divisible.

        Args:
            request: what for.
            backend: where.
            now_s: the time.
            candidate: what the decision expects there.
            policy: in force.
        """
        self._claims += 1
        nonce = f"{request.id}.{self._claims}"
        lease = self.lease(nonce, request, backend, now_s)
        self._ledger.claim(lease)
        slot = None
        if candidate is not None:
            slot = candidate.slot
            self._outlook.claimed(lease, request, candidate)
            lease.charged = lease.work.weighted_tokens(policy.output_weight) if lease.work is not None else 0.0
        self._replica.touch(backend.id)
        news = self._telling.claims(lease, now_s)
        limit, epoch = backend.running_limit, backend.epoch
        self._effects.append(Claim(request.id, backend.id, nonce, lease.seats, limit, epoch, slot, news))
        return lease

    def lease(self, nonce: str, request: Request, backend: Backend, now_s: float, owner: str = "") -> Lease:
        """A lease of as many seats as the request would get now."""
        seats = request.seats
        if request.divisible:
            seats = min(seats, room_for(self._replica.view(backend.id), request))
        return Lease(
            nonce, request.id, backend.id, backend.epoch, seats, request.model, now_s,
            streams=request.stream, owner=owner, request=request,
        )  # fmt: skip

    def grant(self, nonce: str, now_s: float) -> Lease | None:
        """The store granted a claim. None: unknown, said before, or wanted by nobody (then it is given back)."""
        lease = self._ledger.grant(nonce, now_s)
        if lease is not None and lease.state is LeaseState.UNWANTED:
            self.give_back(lease, now_s, charge=-lease.charged)
            return None
        return lease

    def refuse(self, nonce: str, now_s: float) -> Lease | None:
        """The store refused a claim: the lease as it was. None: unknown, or said before."""
        lease = self._ledger.refuse(nonce)
        if lease is not None:
            self._outlook.gone(lease, now_s)
            if lease.counted:
                self._freed(lease.backend_id)
        return lease

    def disown(self, lease: Lease, now_s: float) -> None:
        """Nobody waits for the store's answer any more; if it is yes, the seats go straight back."""
        self._ledger.disown(lease.nonce, now_s)

    def give_back(self, lease: Lease, now_s: float, measured: Measured | None = None, charge: float = 0.0) -> None:
        """The engine is done with a granted lease: its seats are free. Giving back what is gone does nothing.

        Args:
            lease: which one.
            now_s: the time.
            measured: what a complete answer cost; None: there was none.
            charge: weighted tokens that its tenant is charged on top.
        """
        state = self._replica.get(lease.backend_id)
        remember = state is not None and state.reports_slots and lease.counted
        if self._ledger.release(lease.nonce, now_s, remember=remember) is None:
            return
        self._outlook.gone(lease, now_s)
        if state is not None and lease.counted:
            if lease.state is not LeaseState.UNWANTED:
                state.forget_doubt(lease)
            self._freed(lease.backend_id)
        self._gone(lease, measured, charge)

    def abandon(self, lease: Lease, policy: Policy, now_s: float, charge: float = 0.0) -> None:
        """Nobody waits for the engine's answer any more, but the engine may work on: the seats stay taken."""
        if self._ledger.get(lease.nonce) is None:
            return  # the engine restarted since: nothing works on
        self._ledger.abandon(lease.nonce, now_s)
        self._outlook.abandoned(lease)
        self._telling.abandoned(lease, charge)
        state = self._replica.get(lease.backend_id)
        if state is not None and state.reports_slots:
            look_after_s = policy.look_after_stream_s if lease.committed else policy.look_after_s
            self._effects.append(Look(lease.backend_id, now_s + look_after_s))
            grace_s = policy.abandoned_limit_s
        else:
            grace_s = policy.abandoned_stream_grace_s if lease.committed else policy.abandoned_grace_s
        self._deadlines.set(("grace", lease.nonce), now_s + grace_s)

    def lost_sight(self, backend_id: str, policy: Policy, now_s: float) -> None:
        """A backend tells nothing of its slots any more: its abandoned seats wait for no look, but for a grace time."""
        for lease in self._ledger.of(backend_id):
            if lease.state is LeaseState.ABANDONED:
                self._deadlines.set(("grace", lease.nonce), now_s + policy.abandoned_grace_s)

    def seen_idle(self, nonce: str, now_s: float) -> None:
        """An abandoned lease's engine is, or must by now be, done with it."""
        lease = self._ledger.get(nonce)
        if lease is not None and lease.state is LeaseState.ABANDONED:
            self.give_back(lease, now_s)

    def any_abandoned(self, backend_id: str) -> bool:
        """Whether a backend still has seats whose idleness must be seen."""
        return any(lease.state is LeaseState.ABANDONED for lease in self._ledger.of(backend_id))

    def void(self, backend_id: str, now_s: float) -> list[str]:
        """The engine is gone, or another one: no seat of it counts any more.

        Returns the ids of the requests whose claims were on their way: they must be placed anew.
        """
        claiming = [lease.request_id for lease in self._ledger.of(backend_id) if lease.state is LeaseState.CLAIMING]
        for lease in self._ledger.void(backend_id, now_s):
            self._gone(lease)
        self._outlook.void(backend_id)
        self._freed(backend_id)
        return claiming

    def _freed(self, backend_id: str) -> None:
        self._replica.touch(backend_id)
        self._on_freed(backend_id)

    def _gone(self, lease: Lease, measured: Measured | None = None, charge: float = 0.0) -> None:
        if lease.state is LeaseState.ABANDONED:
            self._deadlines.cancel(("grace", lease.nonce))
        self._deadlines.cancel((f"prefill {lease.nonce}", lease.backend_id))
        self._effects.append(Release(lease.backend_id, lease.nonce, self._telling.over(lease, measured, charge)))
