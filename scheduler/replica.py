"""The local picture of the fleet: what is known of each backend, folded into the snapshot that decisions see.

Knows nothing of requests; seats that leases take are read from the ledger. Views are rebuilt only for backends that
changed (`touch`), since most events change one of many.
"""

from collections import deque
from math import inf

from scheduler.domain import Backend, BackendView, Engine, Report, SlotState, Snapshot
from scheduler.health import Life
from scheduler.leases import ENDED_KEPT, Lease, Ledger
from scheduler.reconcile import read
from scheduler.residencies import loads
from scheduler.residency_book import ResidencyBook


class BackendState:
    """Everything known of one backend that changes. Times are seconds on the scheduler's scale."""

    def __init__(self, backend: Backend) -> None:
        self.told = self.backend = backend
        """As it was told, and with the running limit that is in force."""
        self.life = Life()
        self.draining_since_s = -inf
        """When the drain flag was last set or cleared."""
        self.strikes = 0
        """Failures, each after the pause for the one before, since the last success."""
        self.cooling_until_s = -inf
        self.cooling_firm = False
        self.seats_unknown = 0
        """Seats that other proxies hold by what the store told, beyond the leases that we heard of."""
        self.seats_kept = 0
        """As in `BackendView`."""
        self.elsewhere_asked_s = -inf
        """When the store was asked for that."""
        self.unaccounted = False
        """Whether the number above may not just be news on their way: somebody uses the engine who tells nothing."""
        self.elsewhere_ended: deque[tuple[float, int]] = deque(maxlen=ENDED_KEPT)
        """When we heard of the end of leases of other proxies, and their seats."""
        self.elsewhere_explains = 0
        """Its largest value since the report before the last: what the last report may show of other proxies."""
        self.elsewhere_recent = 0
        """Its largest value since the last report."""
        self.elsewhere_wrong = 0
        """The store's numbers in a row that were not what the other proxies told."""
        self.report_asked_s = -inf
        self.reported_s = -inf
        """When the last accepted look began, and when it came back."""
        self.unexplained = 0
        """Busy slots that are not ours, as last reported; see `reconcile`."""
        self.unexplained_least = 0
        """What of that stays when every doubt is resolved in our favour."""
        self.slots: tuple[SlotState, ...] = ()
        self.book = ResidencyBook()
        """What is loaded there."""
        self.loading = ""
        self.closing: frozenset[str] = frozenset()
        """As in `BackendView`; kept by the planner of loads."""
        self.last_used_s = -inf
        self.held_for = ""
        self.deferred = 0
        """Requests in the engine's own queue, as last reported."""
        self.slots_doubted = ""
        """Why its slots are not for us to name, whatever the reports say; empty: they are."""
        self.named_slots = False
        """What was last told about that."""

    @property
    def reports_slots(self) -> bool:
        """Whether reports tell how many slots are busy."""
        return self.backend.slot_source in {"slots", "children"}

    @property
    def usable(self) -> bool:
        """Alive and taking new work."""
        return self.life.takes_requests and not self.life.draining

    def fail(self, now_s: float, first_s: float, longest_s: float) -> None:
        """An attempt failed: pause, longer with each failure that comes after the pause for the one before.

        Failures during a pause are echoes of the same fault (all requests that ran there when it broke).
        """
        if now_s < self.cooling_until_s and not self.cooling_firm:
            return
        self.strikes += 1
        self._cool(now_s + min(longest_s, first_s * 2.0 ** min(self.strikes - 1, 30)), firm=False)

    def pause(self, now_s: float, pause_s: float) -> None:
        """The engine or the store said not now."""
        self._cool(now_s + pause_s, firm=True)

    def recover(self) -> bool:
        """An attempt got an answer; returns whether that ended a pause. A pause that was asked for goes on."""
        self.strikes = 0
        if self.cooling_firm or self.cooling_until_s == -inf:
            return False
        self.cooling_until_s = -inf
        return True

    def reset(self) -> None:
        """Another engine process: nothing that was seen of the one before holds."""
        self.strikes = 0
        self.cooling_until_s = -inf
        self.cooling_firm = False
        self.seats_unknown = self.seats_kept = self.elsewhere_explains = self.elsewhere_recent = 0
        self.unaccounted = False
        self.elsewhere_ended.clear()
        self.unexplained = self.unexplained_least = 0
        self.slots = ()
        self.book.clear()
        self.deferred = 0
        self.slots_doubted = ""
        self.reported_s = -inf

    @property
    def names_slots(self) -> bool:
        """Whether we may say on which slot a request runs: as far as anybody can see, nobody else uses the engine."""
        known = self.backend.managed or self.reported_s > -inf
        if self.backend.engine is not Engine.LLAMA_SERVER or not (self.reports_slots and known):
            return False
        return not (self.slots_doubted or self.unaccounted or self.deferred or self.foreign_busy)

    @property
    def foreign_busy(self) -> int:
        """Busy slots that no proxy of the fleet holds."""
        return max(0, self.unexplained - self.elsewhere_explains)

    def learn_elsewhere(
        self, seats: int, asked_at_s: float, known: int = 0, since_s: float = inf, *, passing: bool = False
    ) -> None:
        """Take the store's number of seats that other proxies hold.

        Args:
            seats: the store's number.
            asked_at_s: when it was asked for, or now if it came unasked.
            known: seats of those leases of theirs that we know of now.
            since_s: when the store was asked; it may have counted leases that ended since then.
            passing: what is not known of that is most likely news on their way.
        """
        self.seats_unknown = max(0, seats - known - self.ended_seats(since_s))
        if not (passing and self.seats_unknown):
            self.unaccounted = self.seats_unknown > 0
        self.elsewhere_asked_s = asked_at_s
        self.elsewhere_explains = max(self.elsewhere_explains, self.seats_unknown)
        self.elsewhere_recent = max(self.elsewhere_recent, self.seats_unknown)

    def hear_taken(self, seats: int) -> None:
        """Another proxy told of a lease: the store's number most likely had it already."""
        self.seats_unknown = max(0, self.seats_unknown - seats)
        self.unaccounted = self.unaccounted and self.seats_unknown > 0

    def hear_ended(self, seats: int, now_s: float) -> None:
        """Another proxy told of the end of a lease: the store's number may still have it."""
        self.elsewhere_ended.append((now_s, seats))

    def ended_seats(self, since_s: float) -> int:
        """Seats of other proxies of which we heard since then that they fell free."""
        return sum(seats for at_s, seats in self.elsewhere_ended if at_s >= since_s)

    def learn_report(self, report: Report, ledger: Ledger, now_s: float) -> tuple[str, ...]:
        """Take a report in; returns the nonces of abandoned leases that it proves idle."""
        self.report_asked_s = report.asked_at_s
        self.reported_s = now_s
        self.slots = report.slots
        self.deferred = report.deferred or 0
        self.book.reported(report, self.backend, now_s, loading=bool(self.loading))
        self.elsewhere_explains = self.elsewhere_recent
        self.elsewhere_recent = self.seats_unknown
        if report.busy_slots is None:
            self.unexplained = self.unexplained_least = 0
            return ()
        backend_id = self.backend.id
        ended = ledger.ended_after(backend_id, report.asked_at_s)
        ledger.forget_ended(backend_id, report.asked_at_s)
        busy = report.busy_slots + (report.deferred or 0)
        slots = report.slots or [slot for residency in report.residencies for slot in residency.slots]
        reading = read(busy, report.asked_at_s, ledger.at(backend_id), ended or (), self.seats_unknown, slots)
        if ended is not None:
            self.unexplained_least = max(0, reading.unexplained - reading.doubtful - reading.doubtful_ended)
            self.unexplained = max(self.unexplained_least, reading.unexplained - reading.doubtful_ended)
        return reading.idle

    def forget_doubt(self, lease: Lease) -> None:
        """A lease ended. If the last look may or may not have shown it, what it showed is not foreign any more."""
        if self.report_asked_s < lease.granted_s <= self.reported_s:
            self.unexplained = max(self.unexplained_least, self.unexplained - lease.seats)

    def view(self, ledger: Ledger) -> BackendView:
        """The backend as a decision sees it."""
        backend_id = self.backend.id
        return BackendView(
            self.backend,
            self.life.health,
            ledger.seats(backend_id),
            ledger.seats_elsewhere(backend_id) + self.seats_unknown,
            self.foreign_busy,
            self.book.residencies,
            self.slots,
            self.last_used_s,
            self.cooling_until_s,
            self.cooling_firm,
            self.life.draining,
            self.loading,
            self.names_slots,
            self.held_for,
            self.closing,
            ledger.seats_by_model(backend_id) if loads(self.backend) else {},
            self.backend.max_loaded or self.book.most,
            self.seats_kept,
        )

    def _cool(self, until_s: float, *, firm: bool) -> None:
        if until_s > self.cooling_until_s:
            self.cooling_until_s = until_s
            self.cooling_firm = firm


class Replica:
    """All backends, in the order in which they joined."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._states: dict[str, BackendState] = {}
        self._views: dict[str, BackendView] = {}
        self._changed: set[str] = set()
        self._all: tuple[BackendView, ...] = ()

    def get(self, backend_id: str) -> BackendState | None:
        """The state of a backend, if it is one of the fleet."""
        return self._states.get(backend_id)

    def states(self) -> list[BackendState]:
        """All of them."""
        return list(self._states.values())

    @property
    def any_loads(self) -> bool:
        """Whether there is an engine that loads models by itself."""
        return any(loads(state.backend) for state in self._states.values())

    def join(self, backend: Backend) -> BackendState:
        """A new backend."""
        state = self._states[backend.id] = BackendState(backend)
        self._views[backend.id] = self._view(state)
        self.touch(backend.id)
        return state

    def leave(self, backend_id: str) -> None:
        """A backend is gone for good."""
        del self._states[backend_id], self._views[backend_id]
        self._changed.discard(backend_id)
        self._all = tuple(self._views.values())

    def touch(self, backend_id: str) -> None:
        """Something that its view shows has changed."""
        if backend_id in self._states:
            self._changed.add(backend_id)

    def view(self, backend_id: str) -> BackendView:
        """One backend as of now."""
        self._refresh()
        return self._views[backend_id]

    def views(self) -> tuple[BackendView, ...]:
        """All backends as of now."""
        self._refresh()
        return self._all

    def snapshot(self, now_s: float) -> Snapshot:
        """The fleet as of now."""
        return Snapshot(now_s, self.views())

    def _view(self, state: BackendState) -> BackendView:
        return state.view(self.ledger)

    def _refresh(self) -> None:
        if self._changed:
            for backend_id in self._changed:
                self._views[backend_id] = self._view(self._states[backend_id])
            self._changed.clear()
            self._all = tuple(self._views.values())
