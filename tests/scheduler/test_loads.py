"""Room for models that must be loaded first. What is compared with what is in `test_memory`."""

import msgspec
import pytest

from scheduler.domain import Backend, BackendView, Engine, Gpu, Health, Residency
from scheduler.loads import Loads, needs_load
from scheduler.memory import FRESH_S, LONGEST_LOAD_S, GpuMemory
from tests.scheduler.world import MODEL, OTHER_MODEL, backend

GIB = 2**30
NOW_S = 50.0
CARD = Gpu("GPU-1", 0, "NVIDIA GeForce RTX 4090", 24 * GIB)


def ollama(backend_id: str = "a", *, gpu: Gpu | None = CARD, slots: int = 2, size_gib: float = 5.0) -> Backend:
    made = backend(backend_id, limit=slots, models=[MODEL, OTHER_MODEL], engine=Engine.OLLAMA)
    return msgspec.structs.replace(made, gpu=gpu, model_bytes={MODEL: int(size_gib * GIB)})


def view(known: Backend, *loaded: Residency) -> BackendView:
    return BackendView(known, Health.READY, residencies=loaded)


def memory(free_gib: float, *, total_gib: float = 24.0, at_s: float = NOW_S) -> GpuMemory:
    return GpuMemory(int(total_gib * GIB), int(free_gib * GIB), None, at_s)


def loads(sample: GpuMemory | None, *backend_ids: str) -> Loads:
    made = Loads()
    for backend_id in backend_ids or ("a",):
        made.sampled(backend_id, sample, NOW_S)
    return made


def refusal(known: Loads, seen: BackendView, model: str | None = MODEL, now_s: float = NOW_S) -> str | None:
    return known.refusal(seen, model, now_s, (seen,))


@pytest.mark.parametrize(
    ("seen", "model", "expected"),
    [
        pytest.param(view(ollama()), MODEL, True, id="nothing-is-loaded"),
        pytest.param(view(ollama(), Residency(OTHER_MODEL)), MODEL, True, id="another-one-is"),
        pytest.param(view(ollama(), Residency(OTHER_MODEL), Residency(MODEL)), MODEL, False, id="it-is"),
        pytest.param(view(ollama()), None, False, id="any-model-will-do"),
        pytest.param(view(backend()), MODEL, False, id="llama-server-has-its-model-before-it-is-ready"),
    ],
)
def test_who_must_load_first(seen: BackendView, model: str | None, expected: bool) -> None:
    assert needs_load(seen, model) is expected


def test_a_load_that_does_not_fit_is_refused_with_numbers() -> None:
    text = refusal(loads(memory(3.0)), view(ollama()))

    assert text == "loading takes 5.0 GiB: 3.0 of 24.0 GiB are free, 1.2 stay free"
    assert refusal(loads(memory(6.5)), view(ollama())) is None


@pytest.mark.parametrize(
    ("known", "seen", "model"),
    [
        pytest.param(loads(None), view(ollama()), MODEL, id="the-driver-tells-nothing"),
        pytest.param(Loads(), view(ollama()), MODEL, id="never-sampled"),
        pytest.param(loads(memory(3.0)), view(ollama(), Residency(MODEL)), MODEL, id="it-is-loaded"),
        pytest.param(loads(memory(3.0)), view(ollama(gpu=None)), MODEL, id="no-card"),
        pytest.param(loads(memory(3.0)), view(ollama()), None, id="any-model"),
        pytest.param(loads(memory(3.0)), view(ollama()), OTHER_MODEL, id="a-model-of-unknown-size"),
        pytest.param(loads(memory(3.0, total_gib=4.0)), view(ollama()), MODEL, id="too-large-for-the-card: partly-CPU"),
        pytest.param(loads(memory(3.0, at_s=NOW_S - FRESH_S - 1)), view(ollama()), MODEL, id="an-old-sample"),
    ],
)
def test_what_is_not_known_speaks_against_nobody(known: Loads, seen: BackendView, model: str | None) -> None:
    assert refusal(known, seen, model) is None


def test_what_ollama_may_unload_is_room() -> None:
    idle = Residency(OTHER_MODEL, gpu_bytes=4 * GIB)

    assert refusal(loads(memory(3.0)), view(ollama(), idle)) is None


def test_a_size_seen_elsewhere_counts_more_than_that_of_the_weights() -> None:
    here = view(ollama("a"))
    there = view(ollama("b"), Residency(MODEL, size_bytes=9 * GIB))
    large = view(ollama("b", slots=8), Residency(MODEL, size_bytes=9 * GIB))
    known = loads(memory(7.0), "a", "b")

    assert known.refusal(here, MODEL, NOW_S, (here, there)) is not None
    assert known.refusal(here, MODEL, NOW_S, (here, large)) is None, "more slots take more"


def test_a_card_that_is_too_small_is_refused_where_another_one_is_not() -> None:
    small, large = view(ollama("a")), view(ollama("b"))
    known = loads(memory(3.0, total_gib=4.0), "a")
    assert known.refusal(small, MODEL, NOW_S, (small,)) is None

    known.sampled("b", memory(20.0), NOW_S)

    assert known.refusal(small, MODEL, NOW_S, (small, large)) is not None
    assert known.refusal(large, MODEL, NOW_S, (small, large)) is None


def test_a_load_in_progress_keeps_its_room_on_the_card() -> None:
    first, second = view(ollama("a")), view(ollama("b"))
    known = loads(memory(8.0), "a", "b")
    known.begun(first, MODEL, NOW_S, (first, second))

    assert known.refusal(second, MODEL, NOW_S, (first, second)) is not None, "the same card"
    assert known.refusal(first, MODEL, NOW_S, (first, second)) is None, "it is the very load that goes on"
    for backend_id in ("a", "b"):
        known.sampled(backend_id, memory(8.0, at_s=NOW_S + LONGEST_LOAD_S), NOW_S + LONGEST_LOAD_S)
    assert known.refusal(second, MODEL, NOW_S + LONGEST_LOAD_S, (first, second)) is None, "no load takes that long"


@pytest.mark.parametrize("how", ["seen-loaded", "engine-gone", "backend-left"])
def test_how_a_load_ends(how: str) -> None:
    first, second = view(ollama("a")), view(ollama("b"))
    known = loads(memory(8.0), "a", "b")
    known.begun(first, MODEL, NOW_S, (first, second))

    if how == "seen-loaded":
        known.seen("a", [MODEL], NOW_S + 1.0)
        assert known.refusal(second, MODEL, NOW_S, (first, second)) is not None, "the sample is older than that look"
        known.sampled("b", memory(8.0, at_s=NOW_S + 2.0), NOW_S + 2.0)
    elif how == "engine-gone":
        known.void("a")
    else:
        known.left("a")
        assert known.memory("a", NOW_S) is None

    assert known.refusal(second, MODEL, NOW_S + 2.0, (first, second)) is None


def test_what_loads_at_its_start_or_has_no_card_reserves_nothing() -> None:
    plain, bare, other = view(backend("a")), view(ollama("c", gpu=None)), view(ollama("b"))
    known = loads(memory(7.0), "a", "b", "c")

    known.begun(plain, MODEL, NOW_S, (plain, other))
    known.begun(bare, MODEL, NOW_S, (bare, other))

    assert known.refusal(other, MODEL, NOW_S, (other,)) is None


def test_an_older_sample_is_dropped() -> None:
    known = Loads()
    known.sampled("a", memory(8.0, at_s=NOW_S), NOW_S)

    known.sampled("a", memory(1.0, at_s=NOW_S - 1.0), NOW_S - 1.0)

    assert known.memory("a", NOW_S) == memory(8.0)
    known.sampled("a", None, NOW_S + 1.0)
    assert known.memory("a", NOW_S + 1.0) is None, "the driver tells nothing any more"


def test_only_what_goes_makes_room() -> None:
    small, large = Residency(OTHER_MODEL, gpu_bytes=1 * GIB), Residency("x:latest", gpu_bytes=4 * GIB)
    seen, known = view(ollama(), small, large), loads(memory(3.0))

    assert known.refusal(seen, MODEL, NOW_S, (seen,), evicting=(small,)) is not None
    assert known.refusal(seen, MODEL, NOW_S, (seen,), evicting=(large,)) is None
    assert known.refusal(seen, MODEL, NOW_S, (seen,), evicting=()) is not None


def test_a_size_seen_with_a_larger_context_says_nothing_of_a_smaller_one() -> None:
    here = view(ollama("a"))
    there = view(ollama("b"), Residency(MODEL, context_tokens=32768, size_bytes=9 * GIB))
    known = loads(memory(7.0), "a", "b")

    assert known.refusal(here, MODEL, NOW_S, (here, there), evicting=(), context_tokens=4096) is None
    assert known.refusal(here, MODEL, NOW_S, (here, there), evicting=(), context_tokens=32768) is not None
