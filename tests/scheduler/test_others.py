"""Two proxies that hear of each other: one fleet, one line, one account of slots."""

import msgspec
import pytest

from scheduler import effects, events
from scheduler.domain import Measured
from scheduler.news import Hello, LeaseOver, LeaseTaken, Standing, TicketGone, TicketWaits
from scheduler.policy import Policy
from scheduler.telling import asked_of
from tests.scheduler.many import HELLO, SYSTEM, ask, claims, fleet, silent
from tests.scheduler.world import of_type, talk


def test_what_others_hold_takes_room_explains_busy_slots_and_leaves_the_naming_of_slots_to_us() -> None:
    made = fleet(limit=2)
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1", SYSTEM)

    two.look("a")
    two.ask_store("a")

    [view] = two.scheduler.snapshot(two.now_s).backends
    assert (view.seats_leased, view.seats_elsewhere, view.foreign_busy, view.room) == (0, 1, 0, 1)
    assert view.names_slots
    ask(two, "r2", SYSTEM)
    assert {one.running["r1"].slot, two.running["r2"].slot} < {0, 1, 2}


def test_seats_that_nobody_told_of_end_the_naming_of_slots_once_the_store_confirms_them() -> None:
    made = fleet(limit=2)
    one = made.proxies["one"]

    one.feed(events.OccupancyReported("a", 1, one.now_s))

    [view] = one.scheduler.snapshot(one.now_s).backends
    assert (view.seats_elsewhere, view.names_slots) == (1, False)


def test_what_the_store_told_before_a_lease_ended_does_not_count_it_again() -> None:
    made = fleet(limit=2)
    one, two = made.proxies["one"], made.proxies["two"]
    ask(two, "r1")
    asked_at_s = one.now_s
    two.end("r1")
    made.settle()

    one.feed(events.OccupancyReported("a", 1, asked_at_s))

    [view] = one.scheduler.snapshot(one.now_s).backends
    assert (view.seats_elsewhere, view.room) == (0, 2)


def test_answers_at_other_proxies_teach_us_and_leave_their_prefix_in_our_account() -> None:
    made = fleet(limit=2)
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1", SYSTEM, HELLO)
    slot = one.running["r1"].slot
    one.start_answer("r1")
    one.end("r1", measured=Measured(640, 0, 50, 800.0, 700.0, 820.0))
    made.settle()

    ask(two, "r2", SYSTEM, HELLO, (9, 50), (2, 10))

    assert two.running["r2"].slot == slot
    assert two.running["r2"].decision.ranking[0].reused_tokens > 600
    [mine], [theirs] = (proxy.scheduler.outlook.estimates.table(proxy.now_s, {"a": 2}) for proxy in (one, two))
    assert msgspec.structs.replace(mine, learned_s_ago=0.0) == msgspec.structs.replace(theirs, learned_s_ago=0.0)


# One line


def test_a_freed_seat_goes_to_the_oldest_request_wherever_it_waits() -> None:
    made = fleet(policy=Policy(order="fcfs"))
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1")
    ask(two, "r2")
    ask(one, "r3")
    assert [proxy.scheduler.outlook_of(name, proxy.now_s)[0] for proxy, name in ((two, "r2"), (one, "r3"))] == [1, 2]  # type: ignore[index]

    one.end("r1")
    assert claims(one) == [], "it is not its turn"
    made.settle()

    assert (list(one.running), list(two.running)) == ([], ["r2"])
    two.end("r2")
    made.settle()
    assert list(one.running) == ["r3"]
    made.agree()


def test_a_higher_priority_goes_first_wherever_it_waits() -> None:
    made = fleet()
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1")
    ask(one, "r2", priority="low")
    ask(two, "r3", priority="high")

    one.end("r1")
    made.settle()

    assert list(two.running) == ["r3"]


def test_past_the_age_guard_the_oldest_goes_first_wherever_it_waits() -> None:
    made = fleet(policy=Policy(age_guard_s=5.0, hold_s=0.0))
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1", SYSTEM, HELLO)
    ask(two, "old", (7, 900))
    made.pass_time(6.0)
    ask(one, "cheap", SYSTEM, HELLO)

    one.end("r1")
    made.settle()

    assert list(two.running) == ["old"]


def test_tenants_share_by_what_they_use_at_all_proxies() -> None:
    made = fleet(policy=Policy(quantum_tokens=1000, order="fcfs"))
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "first", tenant="greedy")
    for number in range(6):
        ask((one, two)[number % 2], f"g{number}", (50 + number, 900), tenant="greedy")
    for number in range(3):
        ask(two, f"s{number}", (80 + number, 900), tenant="small")

    order = []
    for _ in range(9):
        [(proxy, request_id)] = [(p, name) for p in (one, two) for name in p.running]
        order.append(request_id)
        proxy.end(request_id)
        made.settle()

    assert max(order.index(f"s{number}") for number in range(3)) <= 6, "one each, in turns"
    made.agree()


def test_a_tenant_s_limit_counts_what_it_runs_at_all_proxies() -> None:
    made = fleet(limit=3, policy=Policy(tenant_max_running=1))
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1", tenant="x")
    ask(two, "r2", tenant="x")
    assert list(two.running) == []

    one.client_leaves("r1")
    made.settle()
    assert list(two.running) == ["r2"], "abandoned ones do not count"


def test_the_line_is_bounded_over_all_proxies() -> None:
    made = fleet(policy=Policy(max_waiting=2))
    one, two = made.proxies["one"], made.proxies["two"]
    for proxy, request_id in ((one, "r1"), (one, "r2"), (two, "r3"), (two, "r4")):
        ask(proxy, request_id)

    assert two.done == {"r4": "queue-full"}


# Who is there


def test_alone_nothing_is_told() -> None:
    made = fleet("one")
    one = made.proxies["one"]

    done = [*one.arrive("r1"), *one.arrive("r2")]
    made.settle()

    assert one.scheduler.alone
    assert of_type(done, effects.Tell) == []
    assert [claim.news for claim in of_type(done, effects.Claim)] == [None]
    one.end("r1")
    assert [release.news for release in of_type(one.outbox, effects.Release)] == [None]


def test_who_joins_hears_of_all_that_is_held_and_waits_and_who_was_alone_tells_it_unasked() -> None:
    made = fleet("one")
    one = made.proxies["one"]
    ask(one, "r1", SYSTEM)
    ask(one, "r2", SYSTEM)

    two = made.join("two")
    made.settle()

    made.agree()
    tickets, leases = two.scheduler.elsewhere()
    assert ([ticket.request.id for ticket in tickets], [lease.request_id for lease in leases]) == (["r2"], ["r1"])
    assert leases[0].work is not None
    assert leases[0].work.slot == one.running["r1"].slot


def test_a_hello_is_answered_with_all_that_we_have_and_that_replaces_what_was_known() -> None:
    made = fleet()
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1")
    ask(one, "r2")

    [told] = of_type(one.feed(events.NewsHeard("two", Hello())), effects.Tell)

    assert isinstance(told.news, Standing)
    assert [lease.request.id for lease in told.news.leases] == ["r1"]
    assert [ticket.request.id for ticket in told.news.tickets] == ["r2"]
    two.feed(events.NewsHeard("one", told.news))
    assert [len(part) for part in two.scheduler.elsewhere()] == [1, 1]
    two.feed(events.NewsHeard("one", Standing()))
    assert two.scheduler.elsewhere() == ((), ())
    assert two.scheduler._matching.shares._running == {}


def test_what_a_proxy_had_is_dropped_with_it() -> None:
    made = fleet()
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1")
    ask(one, "r2")
    ask(two, "r3")
    made.crash("one")
    made.expire()

    made.settle()

    assert list(two.running) == ["r3"]
    assert two.scheduler.alone
    made.agree()


def test_one_that_comes_back_is_asked_for_what_it_has() -> None:
    made = fleet()
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1")
    two.feed(events.ProxiesChanged(frozenset()))
    assert two.scheduler.elsewhere() == ((), ())

    assert effects.Tell(Hello()) in two.feed(events.ProxiesChanged(frozenset({"one"})))
    assert effects.Tell(Hello()) not in two.feed(events.ProxiesChanged(frozenset({"one"}))), "once"
    made.settle()
    made.agree()


def test_late_words_of_one_that_is_gone_are_forgotten_in_time() -> None:
    made = fleet()
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1")
    last_words = made.store.log[-1][1]
    made.crash("one")
    made.expire()
    made.settle()

    two.feed(events.NewsHeard("one", last_words))
    assert len(two.scheduler.elsewhere()[1]) == 1
    made.pass_time(20.1)

    assert two.scheduler.elsewhere() == ((), ())
    assert two.scheduler.alone


def test_a_request_that_its_proxy_forgot_is_dropped_after_its_time() -> None:
    made = fleet()
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1")
    ask(two, "r2", wait_s=3.0)
    silent(made, "two")

    made.pass_time(7.5)
    assert len(one.scheduler.elsewhere()[0]) == 1
    made.pass_time(1.0)
    assert one.scheduler.elsewhere()[0] == ()
    assert one.scheduler.elsewhere()[1] == (), "nor is a seat kept for it"


def test_others_are_asked_for_all_they_hold_when_the_store_says_otherwise_time_and_again() -> None:
    made = fleet(limit=3)
    one, two = made.proxies["one"], made.proxies["two"]
    ask(two, "r1")
    made.store.release("two", two.running["r1"].nonce, None)

    told = []
    for _ in range(9):
        one.feed(events.OccupancyReported("a", 0, one.now_s))
        told += of_type(one.outbox, effects.Tell)
        one.outbox.clear()

    assert told == [effects.Tell(Hello())], "once, not each time"


# Backends


def test_leases_of_an_older_engine_are_dropped_and_those_of_a_newer_one_wait_for_it() -> None:
    made = fleet(limit=2)
    one, two = made.proxies["one"], made.proxies["two"]
    ask(two, "r1")
    ask(two, "other")
    [_, late] = [news for owner, news in made.store.log if owner == "two" and not isinstance(news, (Hello, Standing))]
    newer = msgspec.structs.replace(made.backends["a"], epoch=2)
    told = msgspec.structs.replace(late, nonce="n", epoch=2, slot=1)
    one.feed(events.NewsHeard("two", told))
    assert one.scheduler.outlook.mirror(newer, None).predicted("n") is None

    one.feed(events.BackendChanged(newer))

    assert [lease.nonce for lease in one.scheduler.elsewhere()[1]] == ["n"]
    assert not one.scheduler.outlook.mirror(newer, None)._is_idle(1)
    one.feed(events.NewsHeard("two", msgspec.structs.replace(late, nonce="void")))
    assert len(one.scheduler.elsewhere()[1]) == 1, "of an engine that is gone"


def test_a_backend_that_joins_later_has_the_leases_that_were_told_before() -> None:
    made = fleet(limit=2)
    one, two = made.proxies["one"], made.proxies["two"]
    one.feed(events.BackendLeft("a"))
    ask(two, "r1")

    one.feed(events.BackendChanged(made.backends["a"]))

    [view] = one.scheduler.snapshot(one.now_s).backends
    assert view.seats_elsewhere == 1
    assert one.scheduler.outlook.mirror(made.backends["a"], None).idle() == 2


@pytest.mark.parametrize("news", [LeaseOver("nobody"), TicketGone("nobody"), TicketGone("r1")])
def test_news_of_what_is_not_known_or_not_theirs_change_nothing(news: LeaseOver | TicketGone) -> None:
    made = fleet()
    one = made.proxies["one"]
    ask(one, "r1")
    ask(one, "r2")
    before = one.scheduler.snapshot(one.now_s).backends

    assert of_type(one.feed(events.NewsHeard("two", news)), effects.Claim) == []

    assert one.scheduler.snapshot(one.now_s).backends == before
    assert [ticket.request.id for ticket in one.scheduler.waiting()] == ["r2"]


def test_a_request_that_is_told_again_keeps_its_place_and_one_that_failed_somewhere_its_age() -> None:
    made = fleet(policy=Policy(order="fcfs"))
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1")
    ask(two, "r2")
    [waits] = [news for _, news in made.store.log if isinstance(news, TicketWaits)]
    ask(two, "r3")

    for news in (waits, msgspec.structs.replace(waits, tried=("b",), stood_s=10.0)):
        one.feed(events.NewsHeard("two", news))
        assert [ticket.request.id for ticket in one.scheduler.elsewhere()[0]] == ["r2", "r3"]


def test_a_slot_that_is_not_known_here_is_one_that_the_engine_chose() -> None:
    made = fleet(limit=2)
    one = made.proxies["one"]
    known = made.backends["a"]
    told = LeaseTaken("n", "a", known.epoch, 1, asked_of(talk("r", SYSTEM), 0.0), known.slots, 600, 0, 9.0, 80.0, 900.0)

    one.feed(events.NewsHeard("two", told))

    [view] = one.scheduler.snapshot(one.now_s).backends
    assert view.seats_elsewhere == 1
    assert one.scheduler.outlook.mirror(known, None).idle() == known.slots - 1
    ask(one, "r1", HELLO)
    assert one.running["r1"].slot is None
    one.feed(events.NewsHeard("two", LeaseOver("n")))
    one.end("r1")
    ask(one, "r2", HELLO)
    assert one.running["r2"].slot is not None
