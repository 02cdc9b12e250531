from math import inf

from scheduler.domain import Engine, Health, Report, Residency, SlotState
from scheduler.health import Life
from scheduler.leases import ENDED_KEPT, Lease, Ledger
from scheduler.replica import BackendState, Replica
from tests.scheduler.world import MODEL, backend


def state(limit: int = 8) -> BackendState:
    made = BackendState(backend(limit=limit))
    made.life = Life(Health.READY)
    return made


def held(ledger: Ledger, nonce: str, granted_s: float) -> Lease:
    lease = Lease(nonce, "r", "a", 1, 1, None, granted_s)
    ledger.claim(lease)
    ledger.grant(nonce, granted_s)
    return lease


def report(asked_at_s: float, busy: int | None, deferred: int | None = None) -> Report:
    return Report("a", 1, asked_at_s, busy, deferred, (SlotState(0, True),), (Residency(MODEL),))


def foreign(known: BackendState) -> int:
    return known.view(Ledger()).foreign_busy


def test_pauses_double_until_an_attempt_succeeds() -> None:
    known = state()
    pauses = []
    now_s = 0.0
    for _ in range(5):
        known.fail(now_s, 1.0, 6.0)
        pauses.append(known.cooling_until_s - now_s)
        now_s = known.cooling_until_s
    assert pauses == [1.0, 2.0, 4.0, 6.0, 6.0]

    assert known.recover()
    assert known.cooling_until_s == -inf
    known.fail(now_s, 1.0, 6.0)
    assert known.cooling_until_s == now_s + 1.0


def test_failures_during_a_pause_are_echoes() -> None:
    known = state()
    for now_s in (0.0, 0.1, 0.2):
        known.fail(now_s, 1.0, 30.0)

    assert (known.strikes, known.cooling_until_s) == (1, 1.0)


def test_a_pause_that_was_asked_for_outlasts_a_success() -> None:
    known = state()
    known.pause(0.0, 1.0)

    assert not known.recover()
    assert (known.cooling_until_s, known.cooling_firm) == (1.0, True)


def test_the_longer_pause_wins() -> None:
    known = state()
    known.pause(0.0, 0.1)
    known.fail(0.0, 1.0, 30.0)
    assert (known.cooling_until_s, known.cooling_firm) == (1.0, False)
    known.pause(0.5, 0.1)
    assert (known.cooling_until_s, known.cooling_firm) == (1.0, False)


def test_foreign_use_is_what_is_busy_beyond_all_leases() -> None:
    known, ledger = state(), Ledger()
    held(ledger, "x", 1.0)
    known.learn_elsewhere(1, 1.0)

    known.learn_report(report(2.0, busy=4, deferred=1), ledger, 2.1)

    assert foreign(known) == 3, "a request in the engine's own queue counts as a busy slot"
    assert known.view(Ledger()).slots == (SlotState(0, True),)
    assert known.view(Ledger()).residencies == (Residency(MODEL),)


def test_a_request_that_began_during_the_look_is_doubted_only_while_it_runs() -> None:
    known, ledger = state(), Ledger()
    younger = held(ledger, "x", 2.05)

    known.learn_report(report(2.0, busy=2), ledger, 2.1)
    assert foreign(known) == 2

    known.forget_doubt(younger)
    assert foreign(known) == 1, "one of the two busy slots may have been ours; the other was not"
    known.forget_doubt(held(ledger, "later", 2.2))
    assert foreign(known) == 1, "the look cannot have shown this one"


def test_a_request_that_began_and_ended_during_the_look_is_not_foreign() -> None:
    known, ledger = state(), Ledger()
    held(ledger, "x", 2.05)
    ledger.release("x", 2.08, remember=True)

    known.learn_report(report(2.0, busy=2), ledger, 2.1)

    assert foreign(known) == 1


def test_a_look_that_too_much_has_happened_since_says_nothing_about_foreign_use() -> None:
    known, ledger = state(), Ledger()
    known.learn_report(report(1.0, busy=3), ledger, 1.1)
    for number in range(ENDED_KEPT + 1):
        held(ledger, str(number), 2.0)
        ledger.release(str(number), 3.0 + number, remember=True)

    known.learn_report(report(2.5, busy=8), ledger, 1e4)

    assert foreign(known) == 3


def test_what_other_proxies_held_lately_is_not_foreign() -> None:
    known, ledger = state(), Ledger()
    known.learn_elsewhere(3, 1.0)
    known.learn_elsewhere(0, 2.0)

    known.learn_report(report(1.9, busy=3), ledger, 2.1)
    assert foreign(known) == 0, "the look may have begun before they ended"

    known.learn_report(report(4.0, busy=3), ledger, 4.1)
    assert foreign(known) == 3

    known.learn_elsewhere(3, 4.2)
    assert foreign(known) == 0, "the store told later than the engine"


def test_what_is_not_known_is_not_foreign() -> None:
    known, ledger = state(), Ledger()
    known.learn_report(report(1.0, busy=4), ledger, 1.1)
    known.learn_report(report(2.0, busy=None), ledger, 2.1)

    assert foreign(known) == 0


def test_a_new_engine_starts_with_a_clean_sheet() -> None:
    known, ledger = state(), Ledger()
    known.fail(0.0, 1.0, 30.0)
    known.learn_elsewhere(2, 1.0)
    known.learn_report(report(1.0, busy=8), ledger, 1.1)

    known.reset()

    assert known.view(Ledger()) == state().view(Ledger())


def test_views_follow_what_was_touched() -> None:
    ledger = Ledger()
    replica = Replica(ledger)
    replica.join(backend("a"))
    replica.join(backend("b"))
    before = replica.snapshot(1.0)
    assert [view.backend.id for view in before.backends] == ["a", "b"]

    held(ledger, "x", 1.0)
    replica.touch("a")
    replica.touch("gone")
    after = replica.snapshot(2.0)

    assert [view.seats_leased for view in after.backends] == [1, 0]
    assert after.backends[1] is before.backends[1], "what did not change is not built again"
    replica.leave("a")
    assert replica.views() == (after.backends[1],)
    assert replica.get("a") is None


# Seats of other proxies


def test_what_the_store_tells_is_compared_with_what_the_others_told() -> None:
    known = state()
    known.learn_elsewhere(3, 5.0, known=2, since_s=5.0)
    assert (known.seats_unknown, known.unaccounted) == (1, True)
    assert known.view(Ledger()).seats_elsewhere == 1

    known.hear_taken(1)
    assert (known.seats_unknown, known.unaccounted) == (0, False), "the news of it came after the number"


def test_a_number_that_is_older_than_the_end_of_a_lease_still_has_it() -> None:
    known = state()
    known.hear_ended(2, 6.0)

    known.learn_elsewhere(3, 5.0, known=1, since_s=5.0)
    assert known.seats_unknown == 0
    known.learn_elsewhere(3, 7.0, known=1, since_s=7.0)
    assert known.seats_unknown == 2


def test_what_is_most_likely_on_its_way_takes_room_but_ends_no_naming_of_slots() -> None:
    known = state()
    known.learn_elsewhere(1, 5.0, since_s=5.0, passing=True)

    assert (known.seats_unknown, known.unaccounted) == (1, False)
    known.learn_elsewhere(1, 6.0, since_s=6.0)
    assert known.unaccounted
    known.learn_elsewhere(2, 7.0, since_s=7.0, passing=True)
    assert known.unaccounted, "what was sure stays so"


def test_the_slots_of_loaded_models_speak_for_what_was_abandoned() -> None:
    """As an engine's own slots do: a request that is not on its slot yet must not hide who still is on one."""
    known = BackendState(backend(engine=Engine.OLLAMA, slot_source="children"))
    assert known.reports_slots
    assert not known.names_slots
    ledger = Ledger()
    held(ledger, "gone", 1.0)
    ledger.abandon("gone", 5.0)
    held(ledger, "live", 6.0)
    slots = (SlotState(0, True), SlotState(1, False))

    def look(asked_at_s: float, busy: int, slots: tuple[SlotState, ...]) -> tuple[str, ...]:
        told = Report("a", 1, asked_at_s, busy, None, (), (Residency(MODEL, slots=slots),))
        return known.learn_report(told, ledger, asked_at_s + 0.1)

    assert look(7.0, 1, slots) == ()  # whose is it?
    known_live = ledger.get("live")
    assert known_live is not None
    known_live.committed = True
    assert look(8.0, 2, (SlotState(0, True), SlotState(1, True))) == ()
    assert look(9.0, 1, slots) == ("gone",)
    assert foreign_of(known, ledger) == 0
    look(10.0, 4, slots)
    assert foreign_of(known, ledger) == 2


def foreign_of(known: BackendState, ledger: Ledger) -> int:
    return known.view(ledger).foreign_busy
