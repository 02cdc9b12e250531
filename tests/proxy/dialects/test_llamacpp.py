from typing import Any

import pytest

from proxy.dialects.errors import ClientError
from proxy.dialects.llamacpp import read
from scheduler.domain import Engine


@pytest.mark.parametrize(
    ("path", "fields", "seats"),
    [
        ("/completion", {"prompt": "x"}, 1),
        ("/completion", {"prompt": ["x", [1, 2], {"prompt_string": "y"}]}, 3),
        ("/completions", {"prompt": "x", "n": 2}, 2),
        ("/completion", {"prompt": "x", "n_cmpl": 3}, 3),
        ("/completion", {"prompt": "x", "n_cmpl": 3.0, "n": 4}, 3),
        ("/infill", {"input_prefix": "a"}, 1),
        ("/infill", {"input_prefix": "a", "n": 2}, 2),
        ("/infill", {"input_prefix": "a", "n_cmpl": 2.0}, 2),
        ("/rerank", {"documents": ["a"], "n": 2}, 1),
        ("/tokenize", {"content": "x"}, 0),
        ("/detokenize", {"tokens": [1]}, 0),
        ("/apply-template", {"messages": []}, 0),
        ("/rerank", {"documents": ["a", "b"]}, 2),
        ("/v1/rerank", {"texts": ["a", "b", "c"]}, 3),
        ("/rerank", {"documents": ["a", 5], "texts": ["a", "b", "c"]}, 3),
        ("/rerank", {"documents": [], "texts": ["a", "b", "c"]}, 1),
        ("/rerank", {"documents": "a"}, 1),
        ("/embedding", {"content": ["a", "b"]}, 2),
        ("/embedding", {"content": ["a", "b"], "input": "c"}, 1),
        ("/embedding", {"content": ["a", 5]}, 1),
    ],
)
def test_seats(path: str, fields: dict[str, Any], seats: int) -> None:
    reading = read(path, fields)
    assert reading.seats == seats
    assert set(reading.unsupported) == {Engine.OLLAMA}


def test_streams() -> None:
    assert read("/completion", {"stream": True}).stream
    assert not read("/completion", {}).stream
    assert not read("/tokenize", {"stream": True}).stream


def test_wrong_types() -> None:
    for fields in ({"stream": "yes"}, {"model": 5}):
        with pytest.raises(ClientError, match="Field"):
            read("/completion", fields)
