from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.emulated.ollama_runner import Shape, command_line, shape_of, slots_of
from proxy.emulated.options import EmulatedModel

MODEL = EmulatedModel("a", train_context=8192)


def shape(model: EmulatedModel = MODEL, /, **asked: Any) -> Shape:
    return shape_of(model, asked, context=4096, parallel=2)


@pytest.mark.parametrize(
    ("held", "asked", "serves"),
    [
        ({}, {}, True),
        ({}, {"num_ctx": 4096}, True),
        ({}, {"num_ctx": 2048}, False),
        ({"num_ctx": 8192}, {"num_ctx": 100_000}, True),  # clamped to what it was trained for
        ({}, {"num_batch": 1024}, True),  # what is automatic here
        ({}, {"num_batch": 512}, False),
        ({"num_gpu": 20}, {}, True),
        ({"num_gpu": 20}, {"num_gpu": -1}, True),
        ({}, {"num_gpu": 20}, False),
        ({"num_gpu": 20}, {"num_gpu": 0}, False),
        ({}, {"main_gpu": 0}, True),
        ({}, {"main_gpu": 1}, False),
        ({}, {"use_mmap": True}, False),
        ({"use_mmap": False}, {"use_mmap": False}, True),
        ({}, {"num_thread": 4}, False),
        ({}, {"draft_num_predict": 4}, False),
        ({}, {"shift": True}, True),
        ({}, {"shift": False}, False),
        ({}, {"temperature": 1, "seed": 3, "num_predict": 9, "num_keep": 5}, True),
    ],
)
def test_what_makes_a_reload(held: dict[str, Any], asked: dict[str, Any], serves: bool) -> None:
    assert shape(**held).serves(shape(**asked)) == serves


@given(st.dictionaries(st.sampled_from(["num_ctx", "num_batch", "num_gpu", "num_thread"]), st.integers(0, 10**6)))
def test_every_shape_serves_itself(asked: dict[str, int]) -> None:
    assert shape(**asked).serves(shape(**asked))
    assert 4 <= shape(**asked).context <= MODEL.train_context


def test_the_batch_follows_the_whole_context() -> None:
    batches = [shape(EmulatedModel("a"), num_ctx=tokens).batch for tokens in (2048, 2049, 16384, 16385)]
    assert batches == [512, 1024, 1024, 2048]


def test_families_that_run_one_at_a_time() -> None:
    for family, slots in (("llama", 4), ("qwen35moe", 1), ("nemotron_h_moe", 1), ("qwen3", 4)):
        assert slots_of(EmulatedModel("a", family=family), 4) == slots
    assert slots_of(EmulatedModel("a", capabilities=("embedding",)), 4) == 1


def test_defaults_of_some_models() -> None:
    assert not shape(EmulatedModel("a", family="deepseek2")).shift
    assert shape(EmulatedModel("a", family="deepseek2"), shift=True).shift
    assert shape(EmulatedModel("a", ("completion", "vision")), num_ctx=512).context == 2048


def test_options_reach_the_command_line() -> None:
    plain = command_line(shape(), model_path="/x", port=5, embeds=False)
    assert plain[plain.index("-c") : plain.index("-c") + 4] == ["-c", "8192", "-np", "2"]
    assert plain[-3:] == ["--context-shift", "--keep", "4"]
    more = command_line(shape(num_gpu=7, num_thread=3, shift=False), model_path="/x", port=5, embeds=True)
    assert more[-5:] == ["-ngl", "7", "-t", "3", "--embeddings"]
