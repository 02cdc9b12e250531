"""Seats of one backend that are kept for a request for several, once it was overtaken long enough. Never claims.

A request for several seats would starve behind single ones that take each seat as it falls free. At most one request at
a time has seats kept for it: the oldest of those that are overdue and that some backend may serve.
"""

from collections.abc import Callable

from scheduler.replica import BackendState, Replica
from scheduler.residencies import room_for
from scheduler.waiting import Ticket, WaitingLine, kind_of


class Keeping:
    """The overdue ticket and the backend whose seats are kept for it."""

    def __init__(
        self,
        replica: Replica,
        line: WaitingLine,
        could_use: Callable[[Ticket], bool],
        on_freed: Callable[[str], None],
    ) -> None:
        """Nothing is kept.

        Args:
            replica: all backends.
            line: what waits; `line.overdue` are those that may have seats kept.
            could_use: whether a ticket would use seats that are kept for it.
            on_freed: is told the backend whose seats are no longer kept.
        """
        self._replica = replica
        self._line = line
        self._could_use = could_use
        self._on_freed = on_freed
        self._held: tuple[Ticket, str] | None = None

    @property
    def ticket(self) -> Ticket | None:
        """Whom seats are kept for."""
        return self._held[0] if self._held is not None else None

    def kept_at(self, backend_id: str) -> Ticket | None:
        """Whom the seats of this backend are kept for."""
        return self._held[0] if self._held is not None and self._held[1] == backend_id else None

    def keep(self, now_s: float) -> None:
        """See to it that a backend's seats are kept for the oldest overdue ticket that some backend may serve."""
        if self._held is not None:
            ticket, backend_id = self._held
            if self._may_keep(self._replica.get(backend_id), ticket, now_s):
                return
            self.let_go()
        for ticket in sorted(self._line.overdue.values(), key=lambda ticket: ticket.order):
            backends = [state for state in self._replica.states() if self._may_keep(state, ticket, now_s)]
            if backends:
                chosen = min(backends, key=lambda state: (-self._replica.view(state.backend.id).room, state.backend.id))
                chosen.held_for = ticket.request.id
                self._replica.touch(chosen.backend.id)
                self._held = ticket, chosen.backend.id
                return

    def goes(self, ticket: Ticket) -> None:
        """A ticket waits no more, or stands aside."""
        if self.ticket is ticket:
            self.let_go()

    def let_go(self) -> None:
        """No seats are kept any more."""
        if self._held is None:
            return
        backend_id = self._held[1]
        self._held = None
        state = self._replica.get(backend_id)
        if state is not None:
            state.held_for = ""
            self._replica.touch(backend_id)
            self._on_freed(backend_id)

    def _may_keep(self, state: BackendState | None, ticket: Ticket, now_s: float) -> bool:
        if state is None or not state.usable or now_s < state.cooling_until_s:
            return False
        if not self._could_use(ticket):
            return False
        backend_id = state.backend.id
        if room_for(self._replica.view(backend_id), ticket.request) < 0:
            return False  # its model is not resident there
        return backend_id in self._line.groups[kind_of(ticket)].backends and backend_id not in ticket.tried
