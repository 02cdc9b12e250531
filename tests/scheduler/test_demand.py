"""Work that was asked for lately."""

from scheduler.demand import KEPT, Demand, Wish
from scheduler.runner import Runner

A, B = Wish("a:latest", None), Wish("a:latest", Runner(8192))


def test_work_is_summed_by_model_and_options_within_the_window() -> None:
    demand = Demand(60.0)
    demand.asked(A, 100.0, 0.0)
    demand.asked(A, 300.0, 10.0)
    demand.asked(B, 5.0, 10.0)

    assert dict(demand.wishes(10.0)) == {A: 400.0, B: 5.0}
    assert demand.work_ms(A, 10.0) == 200.0
    assert demand.work_ms(Wish("b:latest", None), 10.0) == 0.0
    assert dict(demand.wishes(65.0)) == {A: 300.0, B: 5.0}
    assert dict(demand.wishes(200.0)) == {}
    assert demand.work_ms(A, 200.0) == 0.0


def test_no_more_wishes_are_remembered_than_there_may_be() -> None:
    demand = Demand(60.0)
    for number in range(2 * KEPT):
        demand.asked(Wish(f"{number}:latest", None), 1.0, 0.0)
    assert len(list(demand.wishes(0.0))) == KEPT


def test_another_window_starts_anew() -> None:
    demand = Demand(60.0)
    demand.asked(A, 1.0, 0.0)
    demand.change(60.0)
    assert list(demand.wishes(0.0))
    demand.change(30.0)
    assert not list(demand.wishes(0.0))
