import hypothesis.strategies as st
import pytest
from hypothesis import given

from scheduler import slot_rules

NEVER = float("-inf")


@pytest.mark.parametrize(
    ("idle", "prompt_tokens", "chosen"),
    [
        ([(0, 0, 0, NEVER), (1, 0, 0, NEVER), (2, 0, 0, NEVER)], 100, 2),  # fresh engine: from the last slot down
        ([(2, 0, 0, NEVER), (0, 0, 0, NEVER)], 100, 2),  # in any order
        ([(0, 0, 500, 5.0), (1, 0, 500, 3.0), (2, 0, 0, 9.0)], 100, 1),  # the least recently used, whatever it holds
        ([(0, 0, 500, 3.0), (1, 0, 500, 3.0)], 100, 1),  # equally long ago: the highest id
        ([(0, 11, 500, 9.0), (1, 0, 0, NEVER)], 100, 0),  # just similar enough
        ([(0, 10, 500, 9.0), (1, 0, 0, NEVER)], 100, 1),  # just not
        ([(0, 1500, 1600, 9.0), (1, 0, 0, NEVER)], 20_000, 1),  # a system prompt before a long prompt is not enough
        ([(0, 50, 500, 1.0), (1, 60, 500, 9.0)], 100, 1),  # the most similar, not the oldest
        ([(2, 50, 500, 1.0), (1, 50, 60, 9.0), (3, 50, 70, 2.0)], 100, 1),  # equally similar: the lowest id
        ([(3, 100, 100, 1.0)], 100, 3),
    ],
)
def test_choice(idle: list[tuple[int, int, int, float]], prompt_tokens: int, chosen: int) -> None:
    assert slot_rules.choose(idle, prompt_tokens) == chosen


def test_no_idle_slot_to_choose() -> None:
    with pytest.raises(ValueError, match="no idle slot"):
        slot_rules.choose([], 10)


@pytest.mark.parametrize(
    ("common", "held", "by_lru", "saved"),
    [(100, 100, True, True), (49, 100, False, True), (50, 100, False, False), (100, 100, False, False)],
)
def test_saving(common: int, held: int, by_lru: bool, saved: bool) -> None:
    assert slot_rules.must_save(common, held, by_lru=by_lru) is saved


@pytest.mark.parametrize(
    ("common", "held", "prompt_tokens", "named", "exchanged"),
    [
        (5, 100, 100, False, True),  # least recently used
        (0, 0, 100, False, True),  # empty: nothing to save, but an entry may come in
        (60, 100, 100, False, False),
        (40, 100, 100, False, True),
        (40, 100, 100, True, True),
        (60, 100, 100, True, False),
        (5, 100, 100, True, False),  # a named slot without similarity is simply overwritten
    ],
)
def test_exchange(common: int, held: int, prompt_tokens: int, named: bool, exchanged: bool) -> None:
    assert slot_rules.exchanges(common, held, prompt_tokens, named=named) is exchanged


@pytest.mark.parametrize(
    ("entries", "common", "held", "restored"),
    [
        ([], 0, 0, None),
        ([(100, 400)], 0, 0, 0),  # a quarter of it is enough
        ([(99, 400)], 0, 0, None),
        ([(100, 100)], 100, 200, None),  # a larger share, but not more tokens
        ([(101, 200)], 100, 150, None),  # more tokens, but a smaller share
        ([(101, 150)], 100, 200, 0),
        ([(50, 100), (60, 110), (70, 200)], 10, 100, 1),  # each better one must beat the one before in both
        ([(0, 10)], 0, 0, None),
        ([(0, 0), (10, 10)], 0, 50, 1),
    ],
)
def test_restoring(entries: list[tuple[int, int]], common: int, held: int, restored: int | None) -> None:
    assert slot_rules.restores(entries, common, held) == restored


@pytest.mark.parametrize(
    ("entries", "tokens", "limit", "gone"),
    [
        ([], 10, 10, 0),
        ([], 11, 10, None),
        ([5, 5], 11, 10, None),
        ([5, 5], 1, 10, 1),
        ([5, 5], 6, 10, 2),
        ([2, 3, 5], 5, 10, 2),
        ([2, 3], 5, 10, 0),
    ],
)
def test_eviction(entries: list[int], tokens: int, limit: int, gone: int | None) -> None:
    assert slot_rules.evicted(entries, tokens, limit) == gone


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 100), st.integers(1, 300))
def test_eviction_makes_just_enough_room(entries: list[int], tokens: int, limit: int) -> None:
    gone = slot_rules.evicted(entries, tokens, limit)

    if gone is None:
        assert tokens > limit
        return
    assert sum(entries[gone:]) + tokens <= limit
    assert gone == 0 or sum(entries[gone - 1 :]) + tokens > limit


@pytest.mark.parametrize(
    ("common", "prompt_tokens", "reused"), [(0, 10, 0), (9, 10, 9), (10, 10, 9), (50, 10, 9), (1, 1, 0), (0, 0, 0)]
)
def test_the_last_token_is_always_computed(common: int, prompt_tokens: int, reused: int) -> None:
    assert slot_rules.reusable(common, prompt_tokens) == reused


@pytest.mark.parametrize(("output", "held"), [(0, 100), (1, 100), (2, 101), (60, 159)])
def test_the_last_generated_token_is_not_kept(output: int, held: int) -> None:
    assert slot_rules.held_after(100, output) == held


def test_containing() -> None:
    assert slot_rules.contains(10, 10)
    assert not slot_rules.contains(9, 10)
