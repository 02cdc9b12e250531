from math import inf

import hypothesis.strategies as st
from hypothesis import given

from scheduler.deadlines import SLACK, Deadlines

A, B, C = ("wait", "a"), ("wait", "b"), ("cool", "c")


def take_all(deadlines: Deadlines, now_s: float) -> list[tuple[str, str]]:
    taken = []
    while (key := deadlines.take_due(now_s)) is not None:
        taken.append(key)
    return taken


def test_in_order_of_time_then_of_setting() -> None:
    deadlines = Deadlines()
    deadlines.set(A, 5.0)
    deadlines.set(B, 3.0)
    deadlines.set(C, 5.0)

    assert deadlines.earliest_s() == 3.0
    assert take_all(deadlines, 2.9) == []
    assert take_all(deadlines, 5.0) == [B, A, C]
    assert deadlines.earliest_s() == inf


def test_moved_and_cancelled_ones_are_not_due_at_their_old_time() -> None:
    deadlines = Deadlines()
    deadlines.set(A, 1.0)
    deadlines.set(A, 9.0)
    deadlines.set(B, 2.0)
    deadlines.cancel(B)
    deadlines.cancel(C)

    assert len(deadlines) == 1
    assert take_all(deadlines, 5.0) == []
    assert take_all(deadlines, 9.0) == [A]


def test_cancelled_ones_do_not_pile_up() -> None:
    deadlines = Deadlines()
    deadlines.set(A, 0.0)  # stays at the top, so nothing is popped
    for count in range(10_000):
        deadlines.set(("wait", str(count)), 100.0)
        deadlines.cancel(("wait", str(count)))

    assert len(deadlines._heap) <= SLACK + 4


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 20)),
            st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("take"), st.just(0), st.integers(0, 20)),
        ),
        max_size=120,
    )
)
def test_behaves_like_a_sorted_dict(steps: list[tuple[str, int, int]]) -> None:
    deadlines = Deadlines()
    model: dict[tuple[str, str], int] = {}
    for step, number, at_s in steps:
        key = ("k", str(number))
        if step == "set":
            deadlines.set(key, at_s)
            model[key] = at_s
        elif step == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        else:
            taken = take_all(deadlines, at_s)
            assert sorted(taken) == sorted(due for due, due_s in model.items() if due_s <= at_s)
            assert [model[due] for due in taken] == sorted(model[due] for due in taken)
            for due in taken:
                del model[due]
        assert deadlines.earliest_s() == min(model.values(), default=inf)
        assert len(deadlines) == len(model)


def test_when_a_key_is_due_can_be_asked() -> None:
    deadlines = Deadlines()
    assert deadlines.at_s(("a", "1")) == inf
    deadlines.set(("a", "1"), 5.0)
    deadlines.set(("a", "1"), 3.0)
    assert deadlines.at_s(("a", "1")) == 3.0
    deadlines.cancel(("a", "1"))
    assert deadlines.at_s(("a", "1")) == inf
