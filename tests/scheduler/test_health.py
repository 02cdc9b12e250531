from itertools import product

import pytest

from scheduler.domain import Health
from scheduler.health import DRAINING_AFTER, TRANSITIONS, Life, Signal

CONDITIONS = [health for health in Health if health is not Health.DRAINING]


def after(*signals: Signal, until_down: int = 3) -> Life:
    life = Life()
    for signal in signals:
        life = life.after(signal, until_down)
    return life


def test_the_table_is_total_over_what_an_engine_can_be() -> None:
    signals = [signal for signal in Signal if signal not in DRAINING_AFTER]

    assert set(TRANSITIONS) == set(product(CONDITIONS, signals))
    assert Health.DRAINING not in TRANSITIONS.values()


@pytest.mark.parametrize(
    ("signals", "health"),
    [
        pytest.param([], Health.STARTING, id="new"),
        pytest.param([Signal.MISSED] * 2, Health.STARTING, id="a-starting-engine-need-not-answer-at-once"),
        pytest.param([Signal.MISSED] * 3, Health.DOWN, id="one-that-never-answers"),
        pytest.param([Signal.FAILED] * 5, Health.STARTING, id="requests-of-the-process-before"),
        pytest.param([Signal.ANSWERED], Health.READY, id="answers"),
        pytest.param([Signal.ANSWERED, Signal.MISSED], Health.SUSPECT, id="one-missed-probe"),
        pytest.param([Signal.ANSWERED, Signal.FAILED, Signal.MISSED], Health.SUSPECT, id="two-failures"),
        pytest.param([Signal.ANSWERED, *[Signal.FAILED] * 3], Health.DOWN, id="three-failures-in-a-row"),
        pytest.param(
            [Signal.ANSWERED, Signal.FAILED, Signal.FAILED, Signal.SUCCEEDED, Signal.FAILED],
            Health.SUSPECT,
            id="a-success-ends-the-row",
        ),
        pytest.param([Signal.ANSWERED, *[Signal.FAILED] * 3, Signal.SUCCEEDED], Health.DOWN, id="only-a-probe-revives"),
        pytest.param([Signal.ANSWERED, *[Signal.FAILED] * 3, Signal.ANSWERED], Health.READY, id="a-probe-revives"),
        pytest.param(
            [Signal.ANSWERED, *[Signal.FAILED] * 3, Signal.ANSWERED, Signal.FAILED],
            Health.SUSPECT,
            id="the-count-starts-anew-after-a-probe",
        ),
        pytest.param([Signal.ANSWERED, Signal.EXITED, Signal.STARTED], Health.STARTING, id="restarts"),
        pytest.param([Signal.ANSWERED, Signal.DRAIN], Health.DRAINING, id="drains"),
        pytest.param([Signal.ANSWERED, Signal.DRAIN, Signal.EXITED], Health.DOWN, id="dies-draining"),
        pytest.param([Signal.ANSWERED, Signal.DRAIN, Signal.UNDRAIN], Health.READY, id="undrained"),
        pytest.param([Signal.DRAIN], Health.STARTING, id="drained-while-starting"),
    ],
)
def test_life(signals: list[Signal], health: Health) -> None:
    assert after(*signals).health is health


def test_a_drained_backend_that_dies_and_comes_back_is_still_drained() -> None:
    life = after(Signal.ANSWERED, Signal.DRAIN, Signal.EXITED, Signal.STARTED, Signal.ANSWERED)

    assert life.health is Health.DRAINING
    assert life.after(Signal.UNDRAIN, 3).health is Health.READY


def test_draining_hides_no_failure_when_it_ends() -> None:
    life = after(Signal.ANSWERED, Signal.DRAIN, Signal.FAILED)

    assert life.after(Signal.UNDRAIN, 3) == Life(Health.SUSPECT, draining=False, failures=1)


def test_one_failure_may_be_enough() -> None:
    assert after(Signal.ANSWERED, Signal.MISSED, until_down=1).health is Health.DOWN
