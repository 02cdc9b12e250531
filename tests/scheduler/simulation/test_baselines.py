from collections import Counter

import pytest

from scheduler.simulation.baselines import BASELINES, Baseline, Load
from scheduler.simulation.contents import Chain
from tests.scheduler.simulation.test_contents import chain

SYSTEM = (1, 1000)


def loads(*requests: int) -> list[Load]:
    """One per backend."""
    made = []
    for number in requests:
        load = Load()
        load.requests, load.context_tokens = number, 1000 * number
        made.append(load)
    return made


def choices(baseline: Baseline, prompts: list[Chain], counts: list[Load]) -> list[int | None]:
    """Where prompts go while the loads stay as they are."""
    return [baseline.choose(prompt, counts, 1.0) for prompt in prompts]


def unlike(number: int) -> list[Chain]:
    """Prompts without anything in common."""
    return [chain((100 + each, 500), (200 + each, 50)) for each in range(number)]


def alike(number: int) -> list[Chain]:
    """Prompts that start with the same long message."""
    return [chain(SYSTEM, (200 + each, 50)) for each in range(number)]


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_every_baseline_tells_its_settings(name: str) -> None:
    made = BASELINES[name](16)

    assert len(made.settings) > 20
    assert made.choose(alike(1)[0], loads(0, 0), 0.0) in (0, 1)
    assert made.believed_tokens() == 0


def test_round_robin_ignores_load() -> None:
    assert choices(BASELINES["rr"](4), unlike(5), loads(9, 0, 0, 0)) == [0, 1, 2, 3, 0]


def test_least_connections_takes_equal_ones_in_turn() -> None:
    assert choices(BASELINES["leastconn"](4), unlike(4), loads(3, 1, 1, 2)) == [1, 2, 1, 2]


def test_the_central_queue_waits_for_a_slot() -> None:
    central = BASELINES["central"](2)

    assert choices(central, unlike(1), loads(2, 1)) == [1]
    assert choices(central, unlike(1), loads(2, 2)) == [None]


def test_cache_aware_as_shipped_sends_what_is_shared_to_one_backend() -> None:
    """As the real one did: 240 requests that share a prompt, all to the same one."""
    shipped = BASELINES["sgl_default"](4)

    assert set(choices(shipped, alike(40), loads(0, 48, 1, 1))) == {0}
    assert set(choices(shipped, alike(40), loads(48, 0, 0, 0))) == {0}, "there to stay"
    assert set(choices(BASELINES["sgl_default"](4), unlike(40), loads(0, 0, 0, 0))) == {0}, "cold ones: the first"


def test_cache_aware_balances_once_it_is_out_of_balance() -> None:
    shipped, tuned = BASELINES["sgl_default"](4), BASELINES["sgl_abs2"](4)
    for baseline in (shipped, tuned):
        assert choices(baseline, alike(2), loads(0, 0)) == [0, 0]

    assert choices(shipped, alike(1), loads(60, 0)) == [0], "64 apart at least"
    assert choices(shipped, alike(1), loads(65, 0)) == [1]
    assert choices(tuned, alike(1), loads(3, 0)) == [1]
    assert tuned.believed_tokens() == 0


def test_cache_aware_follows_only_a_match_above_its_threshold() -> None:
    baseline = BASELINES["sgl_default"](4)
    baseline.choose(chain(SYSTEM), loads(0, 5), 0.0)

    assert baseline.choose(chain(SYSTEM, (2, 2000)), loads(2, 0), 1.0) == 0
    assert baseline.believed_tokens() == 1000
    assert baseline.choose(chain(SYSTEM, (3, 3000)), loads(2, 0), 1.0) == 1


@pytest.mark.parametrize("name", ["lmetric", "llmd"])
def test_a_prefix_draws(name: str) -> None:
    baseline = BASELINES[name](4)

    assert choices(baseline, alike(3), loads(0, 0)) == [0, 0, 0]
    assert baseline.believed_tokens() == 1000


def test_lmetric_weighs_a_prefix_by_what_runs() -> None:
    baseline = BASELINES["lmetric"](4)
    baseline.choose(chain(SYSTEM), loads(0, 0), 0.0)

    assert baseline.choose(chain(SYSTEM, (2, 1000)), loads(0, 0), 1.0) == 0
    assert baseline.choose(chain(SYSTEM, (3, 1000)), loads(2, 0), 1.0) == 1, "3 x 1000 against 1 x 2000"


def test_llmd_sends_a_hot_prompt_to_one_backend_whatever_decodes_there() -> None:
    assert set(choices(BASELINES["llmd"](16), alike(40), loads(15, 0, 0, 0))[1:]) == {1}


def test_dynamo_counts_blocks_and_forgets() -> None:
    dynamo = BASELINES["dynamo"](16)
    dynamo.choose(chain(SYSTEM), loads(0, 0), 0.0)

    assert dynamo.choose(chain(SYSTEM), loads(0, 0), 119_000.0) == 0
    assert dynamo.choose(chain(SYSTEM), loads(2, 0), 120_000.0) == 1, "2000 tokens decode, 1000 would be saved"
    assert BASELINES["dynamo"](16).believed_tokens() == 0


def test_a_bounded_hash_keeps_a_client_where_it_is_and_spills() -> None:
    baseline = BASELINES["chwbl"](16)
    client = chain(SYSTEM, (2, 50))
    home = choices(baseline, [client, chain(SYSTEM, (2, 50), (3, 9))], loads(1, 1, 1, 1))
    full = loads(1, 1, 1, 1)
    full[home[0] or 0].requests = 9

    assert home[0] == home[1]
    assert baseline.choose(client, full, 0.0) != home[0]
    spread = Counter(choices(baseline, [chain(SYSTEM, (each, 50)) for each in range(400)], loads(1, 1, 1, 1)))
    assert min(spread.values()) > 50
