from random import Random

from scheduler.runner import Runner
from scheduler.waiting import Queue, Ticket, WaitingLine, kind_of, lane_of, rank_of
from tests.scheduler.world import OTHER_MODEL, request


def ticket(number: int, *, seats: int = 1, model: str | None = None, tried: frozenset[str] = frozenset()) -> Ticket:
    return Ticket(request(f"r{number}", seats=seats, model=model), number, tried=tried)


def only(line: WaitingLine) -> Queue:
    (group,) = line.groups.values()
    (queue,) = group.queues.values()
    return queue


def ids(line: WaitingLine) -> list[str]:
    return [waiting.request.id for waiting in line]


def test_first_come_first_served_within_a_kind() -> None:
    line = WaitingLine()
    for number in (1, 2, 3):
        line.add(ticket(number))
    queue = only(line)

    assert queue.head().order == 1
    assert ids(line) == ["r1", "r2", "r3"]
    assert (len(line), len(queue), line.seats) == (3, 3, 3)


def test_a_ticket_that_comes_back_has_its_old_place() -> None:
    line = WaitingLine()
    first, second = ticket(1), ticket(2)
    line.add(first)
    line.add(second)
    line.remove(first)
    queue = only(line)
    assert queue.head() is second

    line.add(first)

    assert queue.head() is first
    assert list(queue) == [first, second]


def test_kinds_are_what_backends_treat_alike() -> None:
    assert kind_of(ticket(1)) == kind_of(ticket(2))
    assert len({kind_of(t) for t in (ticket(1), ticket(1, seats=2), ticket(1, model=OTHER_MODEL))}) == 3
    assert kind_of(ticket(1)) != kind_of(ticket(1, tried=frozenset("a")))
    kinds = [
        Ticket(request(**more), 1.0) for more in ({}, {"runner": Runner()}, {"runner": Runner(8192)}, {"cloud": True})
    ]
    assert len({kind_of(each) for each in kinds}) == 4


def test_whether_other_tenants_wait_with_a_priority() -> None:
    line = WaitingLine()
    mine, low = (
        Ticket(request("r1", tenant="x"), 1),
        Ticket(request("r2", tenant="y", priority="low"), 2),
    )
    line.add(mine)
    line.add(low)
    assert [line.others_wait(1, "x"), line.others_wait(1, "y"), line.others_wait(2, "y")] == [False, True, False]

    other = Ticket(request("r3", tenant="y", model=OTHER_MODEL), 3)
    line.add(other)
    assert line.others_wait(1, "x"), "for whatever model"
    line.remove(other)

    assert not line.others_wait(1, "x")


def test_empty_queues_are_dropped() -> None:
    line = WaitingLine()
    large = ticket(1, seats=3)
    _, is_new = line.add(large)
    line.overdue["r1"] = large
    assert is_new

    line.remove(large)

    assert not line.groups
    assert not line.overdue
    assert (len(line), line.seats) == (0, 0)


def test_tickets_that_left_do_not_pile_up() -> None:
    line = WaitingLine()
    line.add(ticket(0))
    for number in range(1, 5000):
        leaving = ticket(number)
        line.add(leaving)
        line.remove(leaving)
    queue = only(line)

    assert len(queue) == 1


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
        queue = only(line)
        head = queue.head()
        served.append(head.order)
        line.remove(head)

    assert served == [number for number in range(300) if number not in left]


def test_lanes_are_priority_and_tenant() -> None:
    assert [rank_of(name) for name in ("high", "normal", "low", "urgent", "")] == [0, 1, 2, 1, 1]
    line = WaitingLine()
    tickets = [
        Ticket(request(f"r{number}", tenant=tenant, priority=priority), number)
        for number, (tenant, priority) in enumerate([("a", "normal"), ("b", "normal"), ("a", "low"), ("a", "normal")])
    ]
    for waiting in tickets:
        line.add(waiting)

    (group,) = line.groups.values()
    assert set(group.queues) == {lane_of(waiting) for waiting in tickets}
    assert [len(queue) for queue in group.queues.values()] == [2, 1, 1]
    assert (line.of_tenant("a"), line.of_tenant("b"), line.of_tenant("c")) == (3, 1, 0)
    assert ids(line) == ["r0", "r1", "r2", "r3"]
    for waiting in tickets:
        line.remove(waiting)
    assert line.of_tenant("a") == 0


def test_how_many_go_before() -> None:
    line = WaitingLine()
    given = [("normal", 1), ("normal", 2), ("high", 3), ("low", 4), ("normal", 5)]
    tickets = {order: Ticket(request(f"r{order}", priority=priority), order) for priority, order in given}
    for waiting in tickets.values():
        line.add(waiting)

    assert {order: line.before(waiting) for order, waiting in tickets.items()} == {1: 1, 2: 2, 3: 0, 4: 4, 5: 3}


def test_how_many_of_a_queue_stand_before_a_place() -> None:
    line = WaitingLine()
    for number in (3, 1, 5):
        line.add(ticket(number))
    assert [only(line).before(order) for order in (0, 1, 2, 5, 6)] == [0, 0, 1, 2, 3]
