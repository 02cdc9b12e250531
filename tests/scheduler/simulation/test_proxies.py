"""Several proxies in virtual time: as good as one while they tell each other, and never above an engine's slots."""

from scheduler.policy import Policy
from scheduler.simulation.engine import EngineSettings
from scheduler.simulation.fleet import Fleet
from scheduler.simulation.proxies import ProxiesRouter, Share
from scheduler.simulation.routers import SchedulerRouter
from scheduler.simulation.statistics import Figures, figures
from scheduler.simulation.workloads import sessions

CARDS, SLOTS = 4, 8
ENGINE = EngineSettings(slots=SLOTS)


def lived(share: Share | None, rate: float = 1.0) -> tuple[Figures, ProxiesRouter | None, int]:
    """Four proxies, or one; with the most requests that ever waited inside an engine."""
    router = None if share is None else ProxiesRouter(Policy(), [ENGINE] * CARDS, 4, share)
    fleet = Fleet([ENGINE] * CARDS, router or SchedulerRouter(Policy(), [ENGINE] * CARDS))
    records = fleet.run(sessions("chat", rate, 1, 240.0))
    return figures(records, CARDS, SLOTS), router, max(engine.deferred_max for engine in fleet.engines)


def test_four_that_tell_each_other_do_as_well_as_one() -> None:
    one, _, _ = lived(None)
    four, router, deferred = lived(Share.NEWS)

    assert router is not None
    assert router.most_seats <= SLOTS
    assert deferred == 0
    assert four.rejected == one.rejected == 0
    assert four.requests == one.requests
    assert abs(four.hit_rate - one.hit_rate) < 0.05
    assert four.ttft_mean_s < 1.5 * one.ttft_mean_s


def test_four_without_the_store_that_tell_each_other_directly_find_as_much() -> None:
    told, _, _ = lived(Share.NEWS)
    direct, router, deferred = lived(Share.DIRECT)

    assert router is not None
    assert router.most_seats <= SLOTS
    assert deferred <= 1, "two may name one slot in the same millisecond"
    assert direct.requests == told.requests
    assert abs(direct.hit_rate - told.hit_rate) < 0.05
    assert direct.ttft_mean_s < 1.5 * told.ttft_mean_s


def test_four_that_only_share_leases_keep_the_limit_and_find_less() -> None:
    told, _, _ = lived(Share.NEWS)
    counted, router, _ = lived(Share.LEASES)

    assert router is not None
    assert router.most_seats <= SLOTS
    assert counted.hit_rate < told.hit_rate
    assert counted.ttft_mean_s > told.ttft_mean_s


def test_four_that_share_nothing_use_each_other_s_slots() -> None:
    told, _, _ = lived(Share.NEWS)
    private, _, deferred = lived(Share.NOTHING)

    assert deferred > 0
    assert private.ttft_mean_s > told.ttft_mean_s


def test_in_overload_no_engine_is_given_more_than_it_takes() -> None:
    _, router, deferred = lived(Share.NEWS, rate=1.6)

    assert router is not None
    assert router.most_seats == SLOTS
    assert deferred == 0
