from typing import Any

import pytest

from proxy.emulated.go_values import duration_s, expect, read_object, read_options
from proxy.emulated.ollama_heads import OllamaError


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (90, 90.0),
        (-1, -1.0),
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("-1m", -60.0),
        ("250ms", 0.25),
        ("1.5h", 5400.0),
        ("0", 0.0),
    ],
)
def test_durations(value: Any, seconds: float | None) -> None:
    assert duration_s(value) == seconds


@pytest.mark.parametrize(
    ("value", "message"), [("soon", "invalid duration"), ("10", "missing unit"), ("5x", "invalid")]
)
def test_what_is_no_duration(value: str, message: str) -> None:
    with pytest.raises(OllamaError, match=message):
        duration_s(value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "missing request body"),
        (b'{"model": ', "unexpected EOF"),
        (b"[1]", "json: cannot unmarshal array into Go value of type api.X"),
        (b'"a"', "json: cannot unmarshal string into Go value of type api.X"),
        (b"nonsense", "invalid character 'n' looking for beginning of value"),
    ],
)
def test_what_is_no_object(body: bytes, message: str) -> None:
    with pytest.raises(OllamaError) as caught:
        read_object(body, "api.X")
    assert (caught.value.status, caught.value.message) == (400, message)


def test_types_of_fields() -> None:
    expect({"messages": None, "stream": True}, "ChatRequest", {"messages": (list, "[]x"), "stream": (bool, "bool")})
    with pytest.raises(OllamaError, match=r"unmarshal string into Go struct field ChatRequest\.stream of type bool"):
        expect({"stream": "yes"}, "ChatRequest", {"stream": (bool, "bool")})


def test_options() -> None:
    assert read_options({"num_ctx": 5, "frobnicate": "x", "temperature": 0.5}) == {
        "num_ctx": 5,
        "frobnicate": "x",
        "temperature": 0.5,
    }
    assert read_options(None) == read_options({"num_ctx": None}) == {}
    for wrong in ({"num_ctx": "many"}, {"temperature": "hot"}, {"stop": "word"}):
        with pytest.raises(OllamaError, match="must be of type") as caught:
            read_options(wrong)
        assert caught.value.status == 500
