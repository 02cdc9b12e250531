import hypothesis.strategies as st
import pytest
from hypothesis import given

from scheduler.domain import Residency
from scheduler.memory import (
    FRESH_S,
    GpuMemory,
    Reservations,
    card_holds,
    evictable_bytes,
    fresh,
    loaded_bytes,
    need_bytes,
    room_for,
)

GIB = 2**30


def card(free_gib: float, *, total_gib: float = 24.0, engine_gib: float | None = None) -> GpuMemory:
    engine_bytes = None if engine_gib is None else int(engine_gib * GIB)
    return GpuMemory(int(total_gib * GIB), int(free_gib * GIB), engine_bytes, 100.0)


@pytest.mark.parametrize(("model_bytes", "expected"), [(None, None), (0, None), (7, 7)])
def test_a_need_is_what_is_known_of_it(model_bytes: int | None, expected: int | None) -> None:
    assert need_bytes(model_bytes) == expected


SEEN = (
    Residency("a:latest", context_tokens=4096, size_bytes=5),
    Residency("a:latest", context_tokens=8192, size_bytes=9),
    Residency("a:latest", context_tokens=None, size_bytes=4),
    Residency("b:latest", context_tokens=4096, size_bytes=None),
    Residency("b:latest", context_tokens=4096, size_bytes=0),
)


@pytest.mark.parametrize(
    ("model", "context_tokens", "expected"),
    [
        ("a:latest", 8192, 9),
        ("a:latest", 16384, 9),
        ("a:latest", 4096, 5),
        ("a:latest", 2048, 4),
        ("a:latest", None, 9),
        ("b:latest", 4096, None),
        ("c:latest", 4096, None),
    ],
)
def test_what_a_model_took_elsewhere(model: str, context_tokens: int | None, expected: int | None) -> None:
    assert loaded_bytes(model, context_tokens, SEEN) == expected


@pytest.mark.parametrize(
    ("memory", "sizes", "expected"),
    [
        (None, (), 0),
        (None, (3, 4), 7),
        (None, (3, None), None),
        (card(1), (3, None), None),
        (card(1, engine_gib=2), (3, None), 2 * GIB),
        (card(1, engine_gib=2), (3, 4), 7),  # without a load in progress, which the driver's number has in it
        (card(1, engine_gib=2), (0,), 0),
    ],
)
def test_what_an_engine_can_unload(
    memory: GpuMemory | None, sizes: tuple[int | None, ...], expected: int | None
) -> None:
    residencies = [Residency(f"m{index}:latest", gpu_bytes=size) for index, size in enumerate(sizes)]
    assert evictable_bytes(memory, residencies) == expected


def test_an_old_sample_tells_nothing() -> None:
    memory = card(1)
    assert fresh(memory, memory.sampled_s + FRESH_S) is memory
    assert fresh(memory, memory.sampled_s + FRESH_S + 0.1) is None
    assert fresh(None, 0.0) is None


FREE = "6.0 of 24.0 GiB are free"


@pytest.mark.parametrize(
    ("memory", "need", "reserved", "evictable", "expected"),
    [
        (None, 80, 0, 0, None),
        (card(1), None, 99, 0, None),
        (card(24), 8, 0, 0, None),
        (card(6), 8, 0, 0, f"loading takes 8.0 GiB: {FREE}, 1.2 stay free"),
        (card(6), 8, 0, 4, None),
        (card(6), 8, 3, 0, f"loading takes 8.0 GiB: {FREE}, loads in progress take 3.0, 1.2 stay free"),
        (card(6), 9, 0, 4, f"loading takes 9.0 GiB: {FREE}, the engine could free 4.0, 1.2 stay free"),
        (card(6), 8, 0, None, None),  # what it could free is not known
        (card(6), 24, 0, None, f"loading takes 24.0 GiB: {FREE}, the engine could free 18.0, 1.2 stay free"),
        (card(6), 24, 0, 20, f"loading takes 24.0 GiB: {FREE}, the engine could free 18.0, 1.2 stay free"),
    ],
)
def test_room_for_a_load(
    memory: GpuMemory | None, need: int | None, reserved: int, evictable: int | None, expected: str | None
) -> None:
    needed = None if need is None else need * GIB
    freed = None if evictable is None else evictable * GIB
    assert room_for(memory, needed, reserved * GIB, evictable=freed) == expected


def test_the_last_byte_fits() -> None:
    memory = GpuMemory(1000, 500, None, 0.0)
    assert room_for(memory, 450) is None
    assert room_for(memory, 451) is not None
    assert room_for(memory, 500, margin=0.0) is None
    assert room_for(memory, 501, margin=0.0) == "loading takes 0.0 GiB: 0.0 of 0.0 GiB are free"


def test_what_no_empty_card_holds() -> None:
    memory = GpuMemory(1000, 0, None, 0.0)
    assert card_holds(memory, 950)
    assert not card_holds(memory, 951)
    assert card_holds(memory, 1000, margin=0.0)
    assert card_holds(memory, None)
    assert card_holds(None, 10**15)


sizes = st.integers(0, 100 * GIB)
memories = st.tuples(sizes, sizes).map(lambda pair: GpuMemory(max(pair), min(pair), None, 0.0))


@given(memories, sizes, sizes, sizes, sizes)
def test_less_to_load_never_needs_more_room(memory: GpuMemory, need: int, less: int, reserved: int, freed: int) -> None:
    if room_for(memory, need, reserved, evictable=freed) is None:
        assert room_for(memory, min(need, less), reserved, evictable=freed) is None
        assert room_for(memory, need, min(reserved, less), evictable=freed) is None
        assert room_for(memory, need, reserved, evictable=max(freed, less)) is None
        assert room_for(memory, need, reserved, evictable=None) is None
        assert card_holds(memory, need)


def test_a_load_reserves_until_a_sample_after_its_end() -> None:
    loads = Reservations()
    loads.reserve("one", "GPU-a", "m:latest", 5, now_s=10.0)
    assert loads.is_loading("one", "m:latest", 11.0)
    assert loads.reserved_bytes("GPU-a", now_s=11.0, sampled_s=10.5) == 5
    assert loads.reserved_bytes("GPU-b", now_s=11.0, sampled_s=10.5) == 0

    loads.seen("one", ["m:latest"], asked_at_s=9.0)  # the look is older than the load: it saw the one before
    assert loads.is_loading("one", "m:latest", 11.0)
    loads.seen("one", ["other:latest"], asked_at_s=15.0)
    loads.seen("two", ["m:latest"], asked_at_s=15.0)
    assert loads.is_loading("one", "m:latest", 15.0)

    loads.seen("one", ["m:latest"], asked_at_s=16.0)
    loads.seen("one", ["m:latest"], asked_at_s=18.0)
    assert not loads.is_loading("one", "m:latest", 18.0)
    assert loads.reserved_bytes("GPU-a", now_s=18.0, sampled_s=15.0) == 5  # the sample may not show it yet
    assert loads.reserved_bytes("GPU-a", now_s=18.0, sampled_s=16.0) == 0


def test_one_load_is_reserved_once_however_many_requests_wait_for_it() -> None:
    loads = Reservations()
    loads.reserve("one", "GPU-a", "m:latest", 5, now_s=0.0)
    loads.reserve("one", "GPU-a", "m:latest", 5, now_s=100.0)
    assert loads.reserved_bytes("GPU-a", now_s=101.0, sampled_s=101.0) == 5
    assert loads.reserved_bytes("GPU-a", now_s=120.0, sampled_s=101.0) == 0  # counted from the first
    loads.reserve("one", "GPU-a", "m:latest", 7, now_s=121.0)
    assert loads.reserved_bytes("GPU-a", now_s=122.0, sampled_s=101.0) == 7


def test_a_model_that_was_unloaded_is_loaded_again() -> None:
    loads = Reservations()
    loads.reserve("one", "GPU-a", "m:latest", 5, now_s=0.0)
    loads.seen("one", ["m:latest"], asked_at_s=3.0)
    loads.reserve("one", "GPU-a", "m:latest", 6, now_s=50.0)
    assert loads.is_loading("one", "m:latest", 50.0)
    assert loads.reserved_bytes("GPU-a", now_s=50.0, sampled_s=49.0) == 6


def test_backends_on_one_card_add_up_and_are_given_back_apart() -> None:
    loads = Reservations()
    loads.reserve("one", "GPU-a", "m:latest", 5, now_s=0.0)
    loads.reserve("one", "GPU-a", "n:latest", 3, now_s=0.0)
    loads.reserve("two", "GPU-a", "m:latest", 7, now_s=0.0)
    assert loads.reserved_bytes("GPU-a", 1.0, 0.0) == 15
    loads.release("one", "n:latest")
    loads.release("one", "never:latest")
    assert loads.reserved_bytes("GPU-a", 1.0, 0.0) == 12
    loads.clear("one")
    assert loads.reserved_bytes("GPU-a", 1.0, 0.0) == 7
    assert not loads.is_loading("one", "m:latest", 1.0)
    loads.clear("two")
    assert loads.reserved_bytes("GPU-a", 1.0, 0.0) == 0


steps = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "seen", "release", "clear"]),
        st.sampled_from("ab"),
        st.sampled_from("mn"),
        st.integers(0, 10),
        st.floats(0.0, 20.0),
    ),
    max_size=40,
)


@given(steps)
def test_nothing_stays_reserved_for_ever(script: list[tuple[str, str, str, int, float]]) -> None:
    loads, now_s = Reservations(), 0.0
    for step, backend_id, model, size, later_s in script:
        now_s += later_s
        before = loads.reserved_bytes("GPU", now_s, now_s)
        match step:
            case "reserve":
                loads.reserve(backend_id, "GPU", model, size, now_s)
                assert loads.is_loading(backend_id, model, now_s)
                assert before <= loads.reserved_bytes("GPU", now_s, now_s) <= before + size
            case "seen":
                loads.seen(backend_id, [model], now_s)
            case "release":
                loads.release(backend_id, model)
            case _:
                loads.clear(backend_id)
        if step != "reserve":
            assert not (step != "clear" and loads.is_loading(backend_id, model, now_s))
            assert 0 <= loads.reserved_bytes("GPU", now_s, now_s) <= before
    assert loads.reserved_bytes("GPU", now_s + 120.0, now_s) == 0
