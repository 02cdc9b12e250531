"""What the others are told, and that it is neither forgotten nor said twice."""

import msgspec

from scheduler import effects, events
from scheduler.domain import Failure, Measured
from scheduler.news import LeaseAbandoned, LeaseOver, LeaseStarted, LeaseTaken, News, TicketGone, TicketWaits
from scheduler.telling import asked_of, request_of
from tests.scheduler.many import HELLO, SYSTEM, ask, fleet
from tests.scheduler.prompts import prompt_of
from tests.scheduler.world import backend, of_type, request


def told(done: tuple[effects.Effect, ...]) -> list[News]:
    return [effect.news for effect in of_type(done, effects.Tell)]


def test_a_request_is_the_same_at_another_proxy_whose_clock_differs() -> None:
    prompt = prompt_of([SYSTEM, HELLO])
    made = request("r1", prompt=prompt, arrived_s=90.0, wait_s=30.0, tenant="x", priority="high", seats=2)

    wire = msgspec.msgpack.encode(asked_of(made, 100.0))
    heard = request_of(msgspec.msgpack.decode(wire, type=type(asked_of(made, 0.0))), 5000.0)

    assert (5000.0 - heard.arrived_s, heard.wait_until_s - 5000.0) == (10.0, 20.0)
    assert msgspec.structs.replace(heard, arrived_s=made.arrived_s, wait_until_s=made.wait_until_s) == made


def test_a_lease_s_life_is_told_by_its_claim_and_its_release() -> None:
    one = fleet().proxies["one"]
    [claim] = of_type(one.arrive("r1"), effects.Claim)
    assert claim.news is not None
    assert (claim.news.nonce, claim.news.slot) == (claim.nonce, claim.slot)
    one.post()
    assert told(one.feed(one.replies.popleft())) == [], "the claim told it"

    assert told(one.feed(events.AnswerStarted("r1"))) == [LeaseStarted(claim.nonce)]
    measured = Measured(10, 0, 20)
    one.end("r1", measured=measured)

    [release] = of_type(one.outbox, effects.Release)
    used = 10 + 2 * 20
    assert release.news == LeaseOver(claim.nonce, measured, used - claim.news.charged)


def test_a_failed_attempt_is_not_charged_and_its_request_waits_again() -> None:
    made = fleet()
    one = made.proxies["one"]
    ask(one, "r1")
    [taken] = [news for _, news in made.store.log if isinstance(news, LeaseTaken)]
    dispatch = one.running.pop("r1")

    done = one.feed(events.AttemptFailed("r1", Failure.TIMEOUT))

    abandoned, waits = told(done)
    assert abandoned == LeaseAbandoned(dispatch.nonce, -taken.charged)
    assert isinstance(waits, TicketWaits)
    assert waits.tried == ("a",)
    made.settle()
    made.agree()
    assert len({tuple(p.scheduler._matching.shares._left.items()) for p in made.proxies.values()}) == 1


def test_one_that_waits_is_told_once_and_told_gone_only_if_no_claim_did() -> None:
    one = fleet().proxies["one"]
    one.arrive("r1")
    [waits] = told(one.arrive("r2"))
    assert isinstance(waits, TicketWaits)

    assert told(one.feed(events.ClientLeft("r2"))) == [TicketGone("r2")]
    assert told(one.feed(events.ClientLeft("r1"))) == [], "its claim is on its way"


def test_one_whose_claim_was_refused_is_still_known_to_wait() -> None:
    made = fleet()
    one, two = made.proxies["one"], made.proxies["two"]
    ask(one, "r1")
    ask(two, "r2")
    one.end("r1")
    one.post()
    two.arrive("r3")
    two.hear()
    two.post()
    one.arrive("r4")
    one.post()

    made.settle()
    made.agree()


def test_a_lost_answer_to_a_claim_forgets_nothing() -> None:
    made = fleet()
    one, two = made.proxies["one"], made.proxies["two"]
    ask(two, "r0")
    ask(one, "r1")
    two.end("r0")
    two.post()
    one.hear()
    one.post()
    assert len(made.store.leases) == 1
    one.lose_reply()

    made.settle()

    made.agree()
    made.pass_time(1.0)
    made.settle()
    assert list(one.running) == ["r1"]
    made.agree()


def test_a_claim_that_was_on_its_way_when_all_was_told_is_taken_back_if_it_is_refused() -> None:
    made = fleet("one")
    one = made.proxies["one"]
    one.arrive("r1")
    two = made.join("two")
    one.feed(one.facts.popleft())
    made.store.claim("nobody", effects.Claim("x", "a", "x", 1, 1, 1))
    made.settle()
    del made.store.leases["x"]

    made.agree()
    assert [ticket.request.id for ticket in two.scheduler.elsewhere()[0]] == ["r1"]


def test_where_the_engine_chooses_after_all_the_others_hear_it() -> None:
    made = fleet(limit=2)
    one, two = made.proxies["one"], made.proxies["two"]
    wanted = request("r1", prompt=prompt_of([SYSTEM]), can_name_slot=True, arrived_s=one.now_s)
    [claim] = of_type(one.arrive("r1", wanted=wanted), effects.Claim)
    assert claim.slot is not None
    one.feed(events.OccupancyReported("a", 1, one.now_s))  # somebody uses the engine who tells nothing
    made.settle()

    assert one.running["r1"].slot is None
    assert two.scheduler.outlook.naming.engine_chooses("a")
    ask(two, "r2", SYSTEM)
    assert two.running["r2"].slot is None
    one.end("r1")
    two.end("r2")
    made.settle()
    assert two.scheduler.outlook.mirror(backend("a"), None).idle() == 3
