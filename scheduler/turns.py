"""Waiting requests of other proxies that are not matched now: it was their turn, and they did not take it, or not yet.

A request whose turn it is stands aside, with its place in line, until its proxy claims a seat for it or its turn is
over. A proxy that told nothing at all during a turn may be dead: then all that it waits with stands aside, so that a
seat is not kept for one of its requests after the other.
"""

from scheduler.waiting import Ticket

SKIP_S = 1.0
"""How long who did not take its turn stands aside."""


class Turns:
    """Who stands aside."""

    def __init__(self) -> None:
        self.tickets: set[str] = set()
        """Ids of requests."""
        self.owners: set[str] = set()
        """Proxies with all their requests."""

    def is_aside(self, ticket: Ticket) -> bool:
        """Whether a ticket is not to be matched now."""
        return bool(ticket.owner) and (ticket.owner in self.owners or ticket.request.id in self.tickets)
