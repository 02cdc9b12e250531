from typing import Any

import pytest

from proxy.dialects.errors import ClientError
from proxy.dialects.openai import read

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "fields", "seats"),
    [
        (CHAT, {"messages": []}, 1),
        (CHAT, {"n": 3}, 3),
        (CHAT, {"n": "many"}, 1),
        (CHAT, {"n": True}, 1),
        (CHAT, {"n": 2.0}, 2),
        (CHAT, {"n": None, "n_cmpl": 2}, 2),
        (CHAT, {"n": 3, "n_cmpl": 2}, 2),
        ("/v1/completions", {"prompt": ["x", "y"], "n_cmpl": 2.0}, 4),
        ("/v1/responses", {"input": "x", "n": 2}, 2),
        ("/v1/responses", {"input": "x", "n_cmpl": 2}, 2),
        ("/v1/embeddings", {"input": "x", "n": 2}, 1),
        (CHAT, {"n": 0}, 1),
        ("/v1/completions", {"prompt": "x", "n": 2}, 2),
        ("/v1/completions", {"prompt": ["x", "y"], "n": 2}, 4),
        ("/v1/completions", {"prompt": [1, 2, 3]}, 1),
        ("/v1/completions", {"prompt": [[1, 2], [3]]}, 2),
        ("/v1/embeddings", {"input": ["a", "b"]}, 2),
        ("/v1/responses", {"input": "x"}, 1),
    ],
)
def test_seats(path: str, fields: dict[str, Any], seats: int) -> None:
    assert read(path, fields).seats == seats


def test_streams_only_when_asked() -> None:
    assert read(CHAT, {"stream": True}).stream
    assert not read(CHAT, {}).stream
    assert not read("/v1/embeddings", {"stream": True}).stream


def test_the_model_may_be_left_out() -> None:
    assert read(CHAT, {}).model is None
    assert read(CHAT, {"model": "m"}).model == "m"


def test_wrong_types() -> None:
    with pytest.raises(ClientError, match=r"ChatCompletionRequest\.model of type string"):
        read(CHAT, {"model": 1})
    with pytest.raises(ClientError, match=r"ResponsesRequest\.stream of type bool"):
        read("/v1/responses", {"stream": "yes"})


def test_images_do_not_count_as_prompt() -> None:
    parts = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:" + "a" * 95}}]
    assert read(CHAT, {"messages": [{"role": "user", "content": parts}]}).image_bytes == 100
    assert read("/v1/responses", {"input": [{"role": "user", "content": parts}]}).image_bytes == 100
    assert read("/v1/embeddings", {"input": [{"content": parts}, "x"]}).image_bytes == 0, "they are not looked through"
