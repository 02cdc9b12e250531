from random import Random

from scheduler.waiting import Ticket, WaitingLine, kind_of
from tests.scheduler.world import OTHER_MODEL, request


def ticket(number: int, *, seats: int = 1, model: str | None = None, tried: frozenset[str] = frozenset()) -> Ticket:
    return Ticket(request(f"r{number}", seats=seats, model=model), number, tried=tried)


def ids(line: WaitingLine) -> list[str]:
    return [waiting.request.id for waiting in line]


def test_first_come_first_served_within_a_kind() -> None:
    line = WaitingLine()
    for number in (1, 2, 3):
        line.add(ticket(number))
    (queue,) = line.queues.values()

    assert queue.head().order == 1
    assert ids(line) == ["r1", "r2", "r3"]
    assert (len(line), len(queue), line.seats) == (3, 3, 3)


def test_a_ticket_that_comes_back_has_its_old_place() -> None:
    line = WaitingLine()
    first, second = ticket(1), ticket(2)
    line.add(first)
    line.add(second)
    line.remove(first)
    (queue,) = line.queues.values()
    assert queue.head() is second

    line.add(first)

    assert queue.head() is first
    assert list(queue) == [first, second]


def test_kinds_are_what_backends_treat_alike() -> None:
    assert kind_of(ticket(1)) == kind_of(ticket(2))
    assert len({kind_of(t) for t in (ticket(1), ticket(1, seats=2), ticket(1, model=OTHER_MODEL))}) == 3
    assert kind_of(ticket(1)) != kind_of(ticket(1, tried=frozenset("a")))


def test_empty_queues_are_dropped() -> None:
    line = WaitingLine()
    large = ticket(1, seats=3)
    _, is_new = line.add(large)
    line.overdue["r1"] = large
    assert is_new
    assert line.first_overdue() is large

    line.remove(large)

    assert not line.queues
    assert not line.overdue
    assert line.first_overdue() is None
    assert (len(line), line.seats) == (0, 0)


def test_tickets_that_left_do_not_pile_up() -> None:
    line = WaitingLine()
    line.add(ticket(0))
    for number in range(1, 5000):
        leaving = ticket(number)
        line.add(leaving)
        line.remove(leaving)
    (queue,) = line.queues.values()

    assert len(queue._heap) < 32


def test_heads_come_in_order_whatever_leaves_in_between() -> None:
    random = Random(5)
    line = WaitingLine()
    tickets = [ticket(number) for number in range(300)]
    for waiting in random.sample(tickets, len(tickets)):
        line.add(waiting)
    left = set(random.sample(range(300), 120))
    for number in left:
        line.remove(tickets[number])
    served = []
    while line:
        (queue,) = line.queues.values()
        head = queue.head()
        served.append(head.order)
        line.remove(head)

    assert served == [number for number in range(300) if number not in left]
