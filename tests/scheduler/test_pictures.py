"""A proxy that starts goes on from what another one learned, and decides alike."""

import msgspec
import pytest

from scheduler import effects, events
from scheduler.core import Scheduler
from scheduler.domain import Backend, Engine, Request, Residency
from scheduler.health import Signal
from scheduler.mirror import MOST_SLOTS
from scheduler.picture import Picture
from scheduler.policy import Policy
from tests.scheduler.fleet import fleet, say
from tests.scheduler.world import MODEL, OTHER_MODEL, World, backend, of_type, talk

SYSTEM, HELLO = (0, 600), (1, 40)
AGAIN_S = 7000.0


def used() -> World:
    """Three backends, one with another API, that answered a few conversations."""
    world = fleet("a", "b")
    world.loads.put("o", Residency(MODEL), Residency(OTHER_MODEL))
    world.join(backend("o", limit=2, engine=Engine.OLLAMA, models=(MODEL, OTHER_MODEL), slot_source="leases"))
    for number in range(12):
        say(world, f"r{number}", SYSTEM, (10 + number % 5, 300), (20 + number, 30), tenant="xyz"[number % 3])
        world.start_answer(f"r{number}")
        world.end(f"r{number}", answer=(100 + number, 60 + 10 * number))
        world.pass_time(0.7)
    return world


def restored(world: World, *, before: bool = True, epoch: int | None = None, wait_s: float = 0.0) -> Scheduler:
    """A new scheduler with a picture of an old one; backends join before it, or after it."""
    wire = msgspec.msgpack.encode(world.scheduler.picture(world.now_s))
    heard = events.PictureHeard(msgspec.msgpack.decode(wire, type=Picture))
    made = Scheduler(world.policy)
    if not before:
        made.handle(heard, AGAIN_S)
    for known in world.backends.values():
        known = known if epoch is None else msgspec.structs.replace(known, epoch=epoch)
        join(made, known, AGAIN_S + wait_s)
    if before:
        made.handle(heard, AGAIN_S)
    return made


def join(scheduler: Scheduler, known: Backend, now_s: float) -> None:
    scheduler.handle(events.BackendChanged(known), now_s)
    for signal in (Signal.STARTED, Signal.ANSWERED):
        scheduler.handle(events.BackendSignalled(known.id, signal), now_s)


def look(world: World, scheduler: Scheduler, now_s: float) -> None:
    """Both see all engines as they are."""
    for name in world.backends:
        world.look(name)
        scheduler.handle(events.BackendReported(world.report(name, now_s)), now_s)


def decision(scheduler: Scheduler, wanted: Request, now_s: float) -> list[tuple[str, float, int | None, int]]:
    [claim] = of_type(scheduler.handle(events.RequestArrived(wanted), now_s), effects.Claim)
    dispatched = scheduler.handle(events.ClaimGranted(wanted.id, claim.nonce), now_s)
    [dispatch] = of_type(dispatched, effects.Dispatch)
    assert dispatch.slot == claim.slot
    return [
        (each.backend_id, round(each.cost_ms, 3), each.slot, each.reused_tokens) for each in dispatch.decision.ranking
    ]


@pytest.mark.parametrize("before", [True, False])
def test_a_restored_scheduler_gives_the_same_decisions(before: bool) -> None:
    world = used()
    pictured_s = world.now_s
    made = restored(world, before=before)
    world.pass_time(1.0)
    look(world, made, AGAIN_S + 1.0)
    found = []

    for number in range(6):
        world.now_s += 1.0
        wanted = talk(f"n{number}", SYSTEM, (10 + number % 5, 300), (90 + number, 30), tenant="x", max_output_tokens=99)
        ours = decision(world.scheduler, wanted, world.now_s)
        assert decision(made, wanted, AGAIN_S + world.now_s - pictured_s) == ours
        found.append(ours[0])

    assert {"a", "b"} <= {place for place, *_ in found}
    assert sum(reused > 600 for *_, reused in found) > 2, "it is about prefixes"


def test_all_that_was_learned_is_the_same() -> None:
    world = used()

    made = restored(world)

    before, after = world.scheduler.picture(world.now_s), made.picture(AGAIN_S)
    assert [msgspec.structs.replace(each, used_s_ago=None, mirrors=(), pairs=()) for each in before.backends] == [
        msgspec.structs.replace(each, used_s_ago=None, mirrors=(), pairs=()) for each in after.backends
    ]
    assert before.returns == after.returns
    assert (before.outputs, before.tokens_per_byte, before.shares) == (
        after.outputs,
        after.tokens_per_byte,
        after.shares,
    )
    for old, new in zip(before.backends, after.backends, strict=True):
        assert [pair.steps for pair in map(_rough, old.pairs)] == [pair.steps for pair in map(_rough, new.pairs)]
        assert [mirror.held for mirror in old.mirrors] == [mirror.held for mirror in new.mirrors]


class _rough:
    def __init__(self, pair: object) -> None:
        self.steps = msgspec.to_builtins(msgspec.structs.replace(pair, learned_s_ago=None))  # type: ignore[type-var]


def test_of_a_backend_with_another_epoch_nothing_is_restored() -> None:
    made = restored(used(), epoch=2)

    for told in made.picture(AGAIN_S).backends:
        assert all(held is None for mirror in told.mirrors for held in mirror.held)
        assert all(not pair.samples for pair in told.pairs)


def test_nor_of_one_that_joins_much_later() -> None:
    made = restored(used(), before=False, wait_s=31.0)

    assert all(not told.mirrors for told in made.picture(AGAIN_S).backends)


def test_of_an_engine_with_more_slots_than_are_accounted_for_those_are_restored() -> None:
    world = World(Policy())
    world.join(backend("a", limit=2, slots=2 * MOST_SLOTS))
    world.look("a")
    say(world, "r", SYSTEM)
    world.end("r", answer=(100, 60))

    [told] = restored(world).picture(AGAIN_S).backends

    assert [held is not None for mirror in told.mirrors for held in mirror.held].count(True) == 1


def test_what_nobody_joins_for_is_dropped() -> None:
    made = restored(used(), before=False, wait_s=31.0)

    assert not made._pictures._waiting


def test_slots_that_are_busy_are_told_as_empty() -> None:
    world = fleet("a", limit=2)
    dispatch = say(world, "r1", SYSTEM)

    [told] = world.scheduler.picture(world.now_s).backends

    assert dispatch.slot is not None
    assert [mirror.held[dispatch.slot] for mirror in told.mirrors] == [None]


def test_a_picture_is_bounded_and_the_slots_that_were_used_last_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.pictures.MOST_BLOCKS", 4000)
    world = World(Policy())
    world.join(backend("a", limit=3))
    world.look("a")
    tokens = 4000 * 64 * 2 // 5
    for number in range(3):
        say(world, f"r{number}", (number, tokens))
        world.end(f"r{number}", answer=(9, 5))

    [told] = world.scheduler.picture(world.now_s).backends

    [mirror] = told.mirrors
    kept = [held for held in mirror.held if held is not None]
    assert 0 < len(kept) < 3
    assert sum(len(held.prompt.blocks) for held in kept) <= 4000
    ages = [ago for held, ago in zip(mirror.held, mirror.used_s_ago, strict=True) if held is not None]
    assert max(age for age in ages if age is not None) < max(age for age in mirror.used_s_ago if age is not None)
