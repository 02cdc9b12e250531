"""Turns of other proxies: who stands aside, and for how long a seat is kept."""

from scheduler import events
from scheduler.news import LeaseTaken, TicketGone, TicketWaits
from scheduler.policy import Policy
from scheduler.turns import Turns
from scheduler.waiting import Ticket
from tests.scheduler.many import ask, claims, fleet, silent
from tests.scheduler.world import request


def test_a_ticket_stands_aside_by_itself_or_with_its_proxy_but_never_one_of_ours() -> None:
    turns = Turns()
    ours, theirs = Ticket(request("r1"), 1), Ticket(request("r2"), 2, owner="two")
    assert not turns.is_aside(theirs)

    turns.tickets = {"r1", "r2"}
    assert (turns.is_aside(ours), turns.is_aside(theirs)) == (False, True)
    turns.tickets.clear()
    turns.owners = {"two", ""}
    assert (turns.is_aside(ours), turns.is_aside(theirs)) == (False, True)


def test_who_does_not_take_its_turn_is_skipped_with_all_that_it_waits_with() -> None:
    made = fleet(policy=Policy(order="fcfs", turn_s=0.03))
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1")
    for request_id in ("r2", "r3"):
        ask(two, request_id)
    ask(one, "r4")
    silent(made, "two")

    one.end("r1")
    made.settle()
    [view] = one.scheduler.snapshot(one.now_s).backends
    assert (view.room, claims(one)) == (0, []), "the seat is kept"
    made.pass_time(0.035)
    made.settle()
    assert list(one.running) == ["r4"]

    made.pass_time(1.1)
    one.end("r4")
    made.settle()
    [view] = one.scheduler.snapshot(one.now_s).backends
    assert view.room == 0, "it has another turn"
    made.pass_time(0.035)
    ask(one, "r5")
    assert list(one.running) == ["r5"]


def test_who_tells_something_keeps_its_other_turns() -> None:
    made = fleet(policy=Policy(order="fcfs"))
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1")
    for request_id in ("r2", "r3"):
        ask(two, request_id)
    one.end("r1")
    one.post()
    one.feed(events.NewsHeard("two", TicketGone("nobody")))

    one.fleet.now_s += 0.03
    one.feed(events.TimePassed())

    turns = one.scheduler._matching.turns
    assert (turns.tickets, turns.owners) == ({"r2", "r3"}, set()), "it is the turn of the next one"


def test_a_turn_that_is_taken_elsewhere_frees_the_seat_here() -> None:
    made = fleet(backends="ab")
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1")
    ask(one, "r2")
    ask(two, "r3")
    [freed] = [one.running["r1"].backend_id]
    one.end("r1")
    [view] = [view for view in one.scheduler.snapshot(one.now_s).backends if view.backend.id == freed]
    assert view.room == 0

    one.feed(events.NewsHeard("two", TicketGone("r3")))

    [view] = [view for view in one.scheduler.snapshot(one.now_s).backends if view.backend.id == freed]
    assert view.room == 1


def test_seats_are_kept_for_an_overdue_request_of_another_proxy_until_it_lets_its_turn_pass() -> None:
    made = fleet(limit=2, policy=Policy(overtake_s=1.0))
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1")
    ask(one, "r2")
    ask(two, "wide", seats=2)
    made.pass_time(1.5)
    ask(one, "r3")

    one.end("r1")
    made.settle()
    assert list(one.running) == ["r2"], "r3 overtakes no more"
    one.end("r2")
    made.settle()
    assert (list(one.running), list(two.running)) == ([], ["wide"])


def test_who_takes_its_turn_for_another_of_its_requests_has_no_further_seat_kept() -> None:
    made = fleet(limit=2, policy=Policy(order="fcfs"))
    one, two = made.proxies["one"], made.proxies["two"]
    for request_id in ("r1", "r2"):
        ask(one, request_id)
    for request_id in ("r3", "r4"):
        ask(two, request_id)
    one.end("r1")
    assert one.scheduler._matching.turns.tickets == {"r3"}
    [r4] = [news.request for _, news in made.store.log if isinstance(news, TicketWaits) and news.request.id == "r4"]

    one.feed(events.NewsHeard("two", LeaseTaken("r4.1", "a", 1, 1, r4, 2, 10, 0, 5.0, 20.0, 50.0)))

    assert one.scheduler._matching.turns.tickets == set()
    [view] = one.scheduler.snapshot(one.now_s).backends
    assert (view.seats_leased, view.seats_elsewhere) == (1, 1)
