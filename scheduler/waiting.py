"""The waiting line: which requests wait, and in what order. Knows nothing of backends' state, claims or deadlines.

Tickets of one priority and tenant that every backend treats alike stand in one queue (a *lane* and a `Kind`). So when a
seat falls free, a look at the heads tells which tickets could use it, however many wait.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from scheduler.domain import Decision, Engine, Operation, Request
from scheduler.leases import Lease
from scheduler.runner import Runner

PRIORITIES = ("high", "normal", "low")
"""Classes, the first goes first. A request of a higher class never waits for one of a lower class."""

_order = attrgetter("order")


class Stage(StrEnum):
    """What an open request is doing."""

    WAITING = "waiting"
    CLAIMING = "claiming"
    RUNNING = "running"


class Ticket(msgspec.Struct, eq=False):
    """An open request and what became of it so far. It keeps its place in line when an attempt fails."""

    request: Request
    order: float
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
    hold_until_s: float | None = None
    """It waits for a much better backend than those that have room, until then; None: it never did."""
    charged: float = 0.0
    """Weighted tokens that its tenant was charged for it."""
    owner: str = ""
    """The proxy whose request it is; empty: this one."""
    told: bool = False
    """The other proxies know that it waits."""
    slot_refusals: int = 0
    """How often in a row the store refused only the slot that was named for it."""
    reuses: dict[str, tuple[Any, int, Any]] = {}
    """What backends could reuse of its prompt, each with the mirror that it was read from, and its version then."""

    @property
    def rank(self) -> int:
        """Place of its priority; an unknown one counts as normal."""
        return rank_of(self.request.priority)


class Kind(NamedTuple):
    """All that matters for which backends may take a request."""

    model: str | None
    operation: Operation
    engines: frozenset[Engine]
    seats: int
    tried: frozenset[str]
    runner: Runner | None = None
    cloud: bool = False


class Lane(NamedTuple):
    """The fair line that a ticket waits in."""

    rank: int
    tenant: str


class Queue:
    """Tickets of one kind and lane, in order."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self._tickets: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        """In order."""
        return iter(self._tickets)

    def head(self) -> Ticket:
        """The ticket whose turn it is; the queue must not be empty."""
        return self._tickets[0]

    def before(self, order: float) -> int:
        """How many tickets stand before a place."""
        return bisect_left(self._tickets, order, key=_order)

    def push(self, ticket: Ticket) -> None:
        """Take a ticket in, at the place of its order."""
        insort(self._tickets, ticket, key=_order)

    def drop(self, ticket: Ticket) -> None:
        """Let a ticket go, wherever it stands."""
        place = self.before(ticket.order)
        while self._tickets[place] is not ticket:  # those of several proxies may have the same order
            place += 1
        del self._tickets[place]


class Group:
    """All tickets of one kind."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.queues: dict[Lane, Queue] = {}
        self.backends: frozenset[str] = frozenset()
        """Backends that may ever serve this kind; kept by the scheduler."""
        self.down_since_s: float | None = None
        """Since when none of them is alive; kept by the scheduler."""

    def __iter__(self) -> Iterator[Ticket]:
        return (ticket for queue in self.queues.values() for ticket in queue)

    def any(self) -> Ticket:
        """One of them; a group is never empty."""
        return next(iter(self.queues.values())).head()


class WaitingLine:
    """All queues. Empty ones are dropped, so their number is bounded by that of the tickets."""

    def __init__(self) -> None:
        self.groups: dict[Kind, Group] = {}
        self.seats = 0
        """Seats that all waiting tickets need at least."""
        self.overdue: dict[str, Ticket] = {}
        """Tickets for several seats that are overtaken no more, by request id."""
        self.newest: Ticket | None = None
        """Added last; whoever looks takes it away."""
        self._tenants: dict[str, int] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Ticket]:
        """All tickets in order of arrival."""
        return iter(sorted((ticket for group in self.groups.values() for ticket in group), key=_order))

    def of_tenant(self, tenant: str) -> int:
        """How many tickets of one tenant wait."""
        return self._tenants.get(tenant, 0)

    def others_wait(self, rank: int, tenant: str) -> bool:
        """Whether a ticket of another tenant waits with this priority, for whatever backend."""
        return any(
            lane.rank == rank and lane.tenant != tenant for group in self.groups.values() for lane in group.queues
        )

    def before(self, ticket: Ticket) -> int:
        """How many waiting tickets are likely to go before this one: of higher priority, or older."""
        rank, order = ticket.rank, ticket.order
        return sum(
            len(queue) if queue.lane.rank < rank else queue.before(order)
            for group in self.groups.values()
            for queue in group.queues.values()
            if queue.lane.rank <= rank
        )

    def add(self, ticket: Ticket) -> tuple[Group, bool]:
        """Take a ticket in; returns its group, and whether that is a new one."""
        kind, lane = kind_of(ticket), lane_of(ticket)
        group = self.groups.get(kind)
        is_new = group is None
        if group is None:
            group = self.groups[kind] = Group(kind)
        queue = group.queues.get(lane)
        if queue is None:
            queue = group.queues[lane] = Queue(lane)
        queue.push(ticket)
        self.newest = ticket
        self._length += 1
        self.seats += kind.seats
        self._tenants[lane.tenant] = self._tenants.get(lane.tenant, 0) + 1
        return group, is_new

    def remove(self, ticket: Ticket) -> None:
        """Let a waiting ticket go."""
        kind, lane = kind_of(ticket), lane_of(ticket)
        group = self.groups[kind]
        queue = group.queues[lane]
        queue.drop(ticket)
        if not queue:
            del group.queues[lane]
            if not group.queues:
                del self.groups[kind]
        self._length -= 1
        self.seats -= kind.seats
        self._tenants[lane.tenant] -= 1
        if not self._tenants[lane.tenant]:
            del self._tenants[lane.tenant]
        self.overdue.pop(ticket.request.id, None)


def rank_of(priority: str) -> int:
    """Place of a priority; an unknown one counts as normal."""
    return PRIORITIES.index(priority if priority in PRIORITIES else "normal")


def kind_of(ticket: Ticket) -> Kind:
    """The kind of a ticket; fixed while it waits."""
    request = ticket.request
    return Kind(
        request.model, request.operation, request.engines, request.least_seats, ticket.tried, request.runner,
        request.cloud,
    )  # fmt: skip


def lane_of(ticket: Ticket) -> Lane:
    """The lane of a ticket; fixed."""
    return Lane(ticket.rank, ticket.request.tenant)
