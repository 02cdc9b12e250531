"""The waiting line: which requests wait, and in what order. Knows nothing of backends' state, claims or deadlines.

Tickets that every backend treats alike stand in one queue (`Kind`). So when a seat falls free, one look at the head of
each queue tells which tickets could use it, however many wait; within a queue only the order matters, and that is
where lanes (priority class, tenant) have their place.
"""

from collections.abc import Iterator
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

import msgspec

from scheduler.domain import Decision, Engine, Operation, Request
from scheduler.leases import Lease


class Stage(StrEnum):
    """What an open request is doing."""

    WAITING = "waiting"
    CLAIMING = "claiming"
    RUNNING = "running"


class Ticket(msgspec.Struct, eq=False):
    """An open request and what became of it so far. It keeps its place in line when an attempt fails."""

    request: Request
    order: int
    """Place in line: tickets that arrived earlier have a smaller one."""
    stage: Stage = Stage.WAITING
    tried: frozenset[str] = frozenset()
    """Backends that failed it."""
    attempts: int = 0
    """Times that it was sent to a backend."""
    failed: int = 0
    """Attempts that count as failed."""
    last_failure: str = ""
    """What went wrong last, for the error's text."""
    decision: Decision | None = None
    """The latest."""
    admitted: bool = False
    """It passed the bound of the waiting line, or never needed to."""
    lease: Lease | None = None
    backend_id: str = ""
    """Where it is being claimed or running."""
    epoch: int = 0
    """Of that backend, when it was sent there."""
    committed: bool = False
    """The first byte of an answer went to the client: no retry from here on."""
    entry: int = -1
    """Its valid entry in a queue's heap; -1: in none."""


class Kind(NamedTuple):
    """All that matters for which backends may take a request."""

    model: str | None
    operation: Operation
    engines: frozenset[Engine]
    seats: int
    tried: frozenset[str]


class Queue:
    """Tickets of one kind, first come first served."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.backends: frozenset[str] = frozenset()
        """Backends that may ever serve this kind; kept by the scheduler."""
        self.down_since_s: float | None = None
        """Since when none of them is alive; kept by the scheduler."""
        self._heap: list[tuple[int, int, Ticket]] = []
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def __iter__(self) -> Iterator[Ticket]:
        """In order."""
        return iter([entry[2] for entry in sorted(self._heap, key=_place) if entry[2].entry == entry[1]])

    def head(self) -> Ticket:
        """The ticket whose turn it is; the queue must not be empty."""
        heap = self._heap
        while heap[0][2].entry != heap[0][1]:
            heappop(heap)
        return heap[0][2]

    def push(self, ticket: Ticket, entry: int) -> None:
        """Take a ticket in, at the place of its order."""
        ticket.entry = entry
        self._waiting += 1
        heappush(self._heap, (ticket.order, entry, ticket))

    def drop(self, ticket: Ticket) -> None:
        """Let a ticket go, wherever it stands."""
        ticket.entry = -1
        self._waiting -= 1
        if len(self._heap) > 16 + 2 * self._waiting:
            self._heap = [entry for entry in self._heap if entry[2].entry == entry[1]]
            heapify(self._heap)


class WaitingLine:
    """All queues. Empty queues are dropped, so their number is bounded by that of the tickets."""

    def __init__(self) -> None:
        self.queues: dict[Kind, Queue] = {}
        self.seats = 0
        """Seats that all waiting tickets ask for."""
        self.overdue: dict[str, Ticket] = {}
        """Tickets for several seats that are overtaken no more, by request id."""
        self._length = 0
        self._entries = count()

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Ticket]:
        """All tickets in order of arrival."""
        tickets = [ticket for queue in self.queues.values() for ticket in queue]
        tickets.sort(key=lambda ticket: ticket.order)
        return iter(tickets)

    def add(self, ticket: Ticket) -> tuple[Queue, bool]:
        """Take a ticket in; returns its queue, and whether that is a new one."""
        kind = kind_of(ticket)
        queue = self.queues.get(kind)
        is_new = queue is None
        if queue is None:
            queue = self.queues[kind] = Queue(kind)
        queue.push(ticket, next(self._entries))
        self._length += 1
        self.seats += kind.seats
        return queue, is_new

    def remove(self, ticket: Ticket) -> None:
        """Let a waiting ticket go."""
        kind = kind_of(ticket)
        queue = self.queues[kind]
        queue.drop(ticket)
        if not queue:
            del self.queues[kind]
        self._length -= 1
        self.seats -= kind.seats
        self.overdue.pop(ticket.request.id, None)

    def first_overdue(self) -> Ticket | None:
        """The overdue ticket that waits longest."""
        return min(self.overdue.values(), key=lambda ticket: ticket.order, default=None)


def kind_of(ticket: Ticket) -> Kind:
    """The kind of a ticket; fixed while it waits."""
    request = ticket.request
    return Kind(request.model, request.operation, request.engines, request.least_seats, ticket.tried)


def _place(entry: tuple[int, int, Ticket]) -> tuple[int, int]:
    return entry[0], entry[1]
