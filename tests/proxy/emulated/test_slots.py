from proxy.emulated.slots import Slot, choose_slot, reusable


def slots(*contents: list[int], busy: tuple[int, ...] = (), used: tuple[int, ...] = ()) -> list[Slot]:
    made = [Slot(number) for number in range(len(contents))]
    for slot, tokens in zip(made, contents, strict=True):
        slot.tokens = tokens
        slot.busy = slot.id in busy
    for order, number in enumerate(used):
        made[number].last_used = order
    return made


def chosen(found: Slot | None) -> int | None:
    return None if found is None else found.id


def test_unused_slots_are_taken_from_the_highest_down() -> None:
    assert chosen(choose_slot(slots([], [], []), [1])) == 2
    assert chosen(choose_slot(slots([], [], [], busy=(2,)), [1])) == 1


def test_the_longest_prefix_wins_over_the_least_recently_used() -> None:
    made = slots([1, 2, 3, 4], [1, 2, 9], [8], used=(2, 1, 0))
    assert chosen(choose_slot(made, [1, 2, 3, 5])) == 0


def test_a_tenth_or_less_is_no_prefix() -> None:
    made = slots([1], [7], used=(1, 0))
    assert chosen(choose_slot(made, [1, *[2] * 9])) == 1
    assert chosen(choose_slot(made, [1, *[2] * 8])) == 0


def test_equal_prefixes_go_to_the_first() -> None:
    assert chosen(choose_slot(slots([1, 2], [1, 2], used=(1, 0)), [1, 2, 3])) == 0


def test_a_busy_slot_lends_nothing() -> None:
    assert chosen(choose_slot(slots([1, 2, 3], [], busy=(0,)), [1, 2, 3])) == 1
    assert choose_slot(slots([1], [1], busy=(0, 1)), [1]) is None


def test_a_named_slot_is_taken_or_waited_for_and_a_number_without_slot_ignored() -> None:
    made = slots([], [], busy=(0,))
    assert chosen(choose_slot(made, [1], named=1)) == 1
    assert choose_slot(made, [1], named=0) is None
    assert chosen(choose_slot(made, [1], named=7)) == 1
    assert chosen(choose_slot(made, [1], named=-1)) == 1


def test_at_least_one_token_is_computed() -> None:
    slot = slots([1, 2, 3])[0]
    assert reusable(slot, [1, 2, 3]) == 2
    assert reusable(slot, [1, 2, 3, 4]) == 3
    assert reusable(slot, [2]) == 0
    assert reusable(slot, []) == 0
