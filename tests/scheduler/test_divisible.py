"""Requests whose work can be divided: batches of inputs, whose pieces get the seats that there are."""

from scheduler import events
from scheduler.domain import Rejection
from scheduler.policy import Policy
from tests.scheduler.world import request, world_of


def test_a_divisible_request_takes_the_seats_that_there_are() -> None:
    world = world_of("a", limit=4)
    world.run(request("r1"))

    first = world.run(request("batch", seats=40, divisible=True))
    assert (first.backend_id, first.seats) == ("a", 3)
    world.arrive(request("batch/2", seats=37, divisible=True, further=True))
    world.end("r1")
    world.answer_claims()

    assert world.running["batch/2"].seats == 1


def test_a_divisible_request_takes_no_more_than_it_wants_and_no_seat_where_it_wants_none() -> None:
    world = world_of("a", limit=4)
    assert world.run(request("r1", seats=2, divisible=True)).seats == 2
    assert world.run(request("r2", seats=0, divisible=True)).seats == 0
    assert world.view("a").room == 2


def test_a_divisible_request_that_the_store_refuses_asks_for_what_is_left() -> None:
    world = world_of("a", limit=4)
    world.others["a"] = 3

    assert world.run(request("batch", seats=4, divisible=True)).seats == 1


def test_a_divisible_request_stands_in_line_like_a_single_one() -> None:
    world = world_of("a", limit=2)
    world.run(request("r1"))
    world.run(request("r2"))
    world.arrive(request("batch", seats=40, divisible=True))
    world.arrive(request("r3"))

    world.end("r1")
    world.answer_claims()
    assert world.running["batch"].seats == 1
    world.end("r2")
    world.answer_claims()
    assert world.running["r3"].seats == 1


def test_further_work_is_turned_away_by_no_full_line_and_no_stop() -> None:
    world = world_of("a", policy=Policy(max_waiting=1))
    world.run(request("r1"))
    world.arrive(request("r2"))
    world.arrive(request("batch/2", divisible=True, further=True))
    world.arrive(request("r3"))
    assert world.rejection("r3") is Rejection.QUEUE_FULL
    world.feed(events.StoppingAnnounced())
    world.arrive(request("batch/3", divisible=True, further=True))

    assert world.waiting() == ["r2", "batch/2"]
    assert world.rejection("batch/3") is Rejection.QUEUE_FULL, "but no more than there are seats"
