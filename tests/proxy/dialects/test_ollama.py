from typing import Any

import pytest

from proxy.dialects.errors import ClientError
from proxy.dialects.ollama import NO_CONTEXT, NO_TEMPLATE, embeds_nothing, read
from scheduler.domain import Engine, Operation

USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("path", "fields", "operation"),
    [
        ("/api/generate", {}, Operation.LOAD),
        ("/api/generate", {"prompt": "", "keep_alive": "5m"}, Operation.LOAD),
        ("/api/generate", {"keep_alive": 0}, Operation.UNLOAD),
        ("/api/generate", {"keep_alive": "0s", "stream": True, "template": "x"}, Operation.UNLOAD),
        ("/api/generate", {"prompt": "x", "keep_alive": 0}, None),
        ("/api/generate", {"suffix": "x"}, None),
        ("/api/chat", {}, Operation.LOAD),
        ("/api/chat", {"messages": [], "keep_alive": 0}, Operation.UNLOAD),
        ("/api/chat", {"messages": [USER]}, None),
    ],
)
def test_load_and_unload(path: str, fields: dict[str, Any], operation: Operation | None) -> None:
    reading = read(path, {"model": "m"} | fields)
    assert reading.operation is operation
    assert reading.seats == (0 if operation else 1)
    assert reading.stream is (operation is None)
    assert reading.unsupported == {}


def test_streams_unless_told_otherwise() -> None:
    assert read("/api/chat", {"model": "m", "messages": [USER], "stream": None}).stream
    assert not read("/api/chat", {"model": "m", "messages": [USER], "stream": False}).stream
    assert not read("/api/embed", {"model": "m", "input": "x"}).stream


def test_embeddings() -> None:
    assert read("/api/embed", {"model": "m", "input": ["a"] * 100}).seats == 100
    nothing: list[Any] = ["", [], None]
    for given in nothing:
        assert read("/api/embed", {"model": "m", "input": given}).seats == 0
        assert embeds_nothing("/api/embed", {"input": given})
    assert read("/api/embeddings", {"model": "m", "prompt": ""}).seats == 0
    assert read("/api/embed", {"model": "m", "input": "a", "top_logprobs": "x", "think": 5}).seats == 1
    for wrong in (5, [1, 2], {"a": 1}):
        with pytest.raises(ClientError, match="invalid input type"):
            read("/api/embed", {"model": "m", "input": wrong})


def test_what_llama_server_cannot_do() -> None:
    assert read("/api/generate", {"model": "m", "prompt": "x", "context": [1]}).unsupported == {
        Engine.LLAMA_SERVER: NO_CONTEXT
    }
    assert read("/api/generate", {"model": "m", "prompt": "x", "template": "{{ .Prompt }}"}).unsupported == {
        Engine.LLAMA_SERVER: NO_TEMPLATE
    }


@pytest.mark.parametrize(
    ("path", "fields", "status", "words"),
    [
        ("/api/chat", {"model": 1}, 400, "unmarshal number into Go struct field ChatRequest.model of type string"),
        ("/api/chat", {"stream": "no"}, 400, "into Go struct field ChatRequest.stream of type bool"),
        ("/api/chat", {"messages": ["hi"]}, 400,
         "cannot unmarshal string into Go struct field ChatRequest.messages of type api.Message"),
        ("/api/chat", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400,
         "json: cannot unmarshal array into Go struct field ChatRequest.messages.content of type string"),
        ("/api/chat", {"messages": [USER | {"images": ["%"]}]}, 400, "illegal base64 data at input byte 0"),
        ("/api/chat", {"messages": [USER | {"Images": ["aGVsbG8=", "aGVs bG8="]}]}, 400,
         "illegal base64 data at input byte 4"),
        ("/api/chat", {"messages": [USER | {"images": ["aGVsbG8"]}]}, 400, "illegal base64 data at input byte 7"),
        ("/api/chat", {"messages": [USER | {"images": [1]}]}, 400, "of type api.ImageData"),
        ("/api/chat", {"messages": [USER | {"image\u017f": 1}]}, 400, "messages.images of type []api.ImageData"),
        ("/api/chat", {"tools": {}}, 400, "ChatRequest.tools of type api.Tools"),
        ("/api/chat", {"options": []}, 400, "ChatRequest.options of type map"),
        ("/api/chat", {"think": "hard"}, 400, 'invalid think value: "hard" (must be "high", "medium", "low", true'),
        ("/api/chat", {"think": 1}, 400, "think must be a boolean or string"),
        ("/api/chat", {"top_logprobs": 21}, 400, "top_logprobs must be between 0 and 20"),
        ("/api/chat", {"top_logprobs": True}, 400, "of type int"),
        ("/api/chat", {"options": {"temperature": "hot"}}, 500, 'option "temperature" must be of type float32'),
        ("/api/generate", {"prompt": "x", "context": "abc"}, 400, "GenerateRequest.context of type []int"),
        ("/api/generate", {"prompt": "x", "raw": True, "system": "y"}, 400,
         "raw mode does not support template, system, or context"),
        ("/api/embed", {"model": "m", "dimensions": "a"}, 400, "EmbedRequest.dimensions of type int"),
        ("/api/embeddings", {"prompt": 1}, 400, "EmbeddingRequest.prompt of type string"),
        ("/api/chat", {"model": ""}, 400, "model is required"),
        ("/api/chat", {"model": None}, 400, "model is required"),
    ],
)  # fmt: skip
def test_refusals(path: str, fields: dict[str, Any], status: int, words: str) -> None:
    with pytest.raises(ClientError) as caught:
        read(path, {"model": "m"} | fields)
    assert words in caught.value.message
    assert caught.value.status == status


def test_images_are_counted_and_may_be_wrapped() -> None:
    reading = read("/api/chat", {"model": "m", "messages": [USER | {"images": ["aGVs\nbG8="]}]})
    assert reading.image_bytes == 9
    assert read("/api/generate", {"model": "m", "prompt": "x", "images": ["aGVsbG8="]}).image_bytes == 8
