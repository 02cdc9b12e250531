import pytest

from proxy.dialects.anthropic import NO_COUNT, read
from proxy.dialects.errors import ClientError
from scheduler.domain import Engine

MESSAGES = [{"role": "user", "content": "x"}]


def test_messages() -> None:
    reading = read("/v1/messages", {"max_tokens": 8, "messages": MESSAGES, "model": "m", "stream": True})
    assert (reading.model, reading.stream, reading.seats, reading.unsupported) == ("m", True, 1, {})


def test_counting_needs_no_slot_but_llama_server() -> None:
    reading = read("/v1/messages/count_tokens", {"messages": MESSAGES})
    assert (reading.seats, reading.unsupported) == (0, {Engine.OLLAMA: NO_COUNT})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": MESSAGES}, "max_tokens is required and must be positive"),
        ({"messages": MESSAGES, "max_tokens": -1}, "max_tokens is required and must be positive"),
        ({"messages": MESSAGES, "max_tokens": "x"}, "MessagesRequest.max_tokens of type int"),
        ({"messages": [], "max_tokens": 1}, "messages is required"),
        ({"model": 1}, "MessagesRequest.model of type string"),
        ({"stream": 1}, "MessagesRequest.stream of type bool"),
    ],
)
def test_refusals(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ClientError, match=words):
        read("/v1/messages", fields)
