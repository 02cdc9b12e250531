from typing import Any

import msgspec
import pytest

from proxy.dialects import ClientError, model_not_found, rejection_error, render_error
from scheduler.domain import Dialect, Rejection
from tests.proxy.dialects.support import call_of, captured

USER = [{"role": "user", "content": "x"}]
CALLS: dict[Dialect, tuple[str, dict[str, Any]]] = {
    Dialect.OLLAMA: ("/api/chat", {"model": "m", "messages": USER}),
    Dialect.OPENAI: ("/v1/chat/completions", {"messages": USER}),
    Dialect.ANTHROPIC: ("/v1/messages", {"messages": USER, "max_tokens": 5}),
    Dialect.LLAMACPP: ("/completion", {"prompt": "x"}),
}


@pytest.mark.parametrize("name", ["ollama/050", "ollama/051", "ollama/075", "ollama/083"])
def test_unknown_models_as_captured(name: str) -> None:
    example = captured(name)
    call = call_of(example.path, example.body)
    status, headers, body = render_error(call.dialect, *rejection_error(call, Rejection.UNKNOWN_MODEL, "ignored"))
    ours, theirs = msgspec.json.decode(body), msgspec.json.decode(example.answer)
    for answer in (ours, theirs):
        answer.pop("request_id", None)
    assert (status, ours) == (example.status, theirs)
    assert dict(headers)["Content-Type"] == example.headers["content-type"]


@pytest.mark.parametrize(("name", "dialect"), [("ollama/007", Dialect.OLLAMA), ("ollama/072", Dialect.OPENAI)])
def test_unknown_models_of_show_and_models(name: str, dialect: Dialect) -> None:
    example = captured(name)
    error = model_not_found("nope")
    assert isinstance(error, ClientError)
    status, _, body = render_error(dialect, error.status, error.kind, error.message)
    assert (status, body.rstrip()) == (example.status, example.answer)


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("rejection", list(Rejection))
def test_every_rejection_has_words_in_every_dialect(dialect: Dialect, rejection: Rejection) -> None:
    path, body = CALLS[dialect]
    status, kind, message = rejection_error(call_of(path, body), rejection, "do this")
    assert 400 <= status < 600
    assert message
    assert render_error(dialect, status, kind, message)[0] == status


def test_a_full_line() -> None:
    found = {}
    for dialect, (path, body) in CALLS.items():
        status, _, message = rejection_error(call_of(path, body), Rejection.QUEUE_FULL, "raise limits.max_waiting")
        found[dialect] = status
        assert dialect is Dialect.OLLAMA or "raise limits.max_waiting" in message
    assert found == {Dialect.OLLAMA: 503, Dialect.OPENAI: 429, Dialect.ANTHROPIC: 529, Dialect.LLAMACPP: 503}
    path, body = CALLS[Dialect.OLLAMA]
    assert rejection_error(call_of(path, body), Rejection.QUEUE_FULL)[2] == (
        "server busy, please try again.  maximum pending requests exceeded"
    )


def test_a_client_that_has_enough_open() -> None:
    found = {}
    for dialect, (path, body) in CALLS.items():
        status, _, message = rejection_error(call_of(path, body), Rejection.TENANT_BUSY, "8 requests wait already")
        found[dialect] = status
        assert message.endswith("this client has as many requests open as it may: 8 requests wait already")
    assert found == {Dialect.OLLAMA: 503, Dialect.OPENAI: 429, Dialect.ANTHROPIC: 529, Dialect.LLAMACPP: 503}
    path, body = CALLS[Dialect.OLLAMA]
    assert rejection_error(call_of(path, body), Rejection.TENANT_BUSY)[2].startswith(
        "server busy, please try again.  maximum pending requests exceeded: "
    )


@pytest.mark.parametrize("rejection", [Rejection.NO_MEMORY, Rejection.PREFILLING])
def test_backends_that_cannot_just_now(rejection: Rejection) -> None:
    for path, body in CALLS.values():
        status, _, message = rejection_error(call_of(path, body), rejection, "gpu0: needs 5.1 GB, 3.0 GB are free")
        assert status == 503
        assert message.endswith(": gpu0: needs 5.1 GB, 3.0 GB are free")


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/api/generate", {"model": "m", "prompt": "x", "context": [1]}, 400, "conversation as messages to /api/chat"),
        ("/api/generate", {"model": "m", "prompt": "x", "template": "t"}, 400, '"raw": true'),
        ("/v1/messages/count_tokens", {"messages": USER}, 404, "needs a llama-server backend"),
        ("/completion", {"prompt": "x"}, 501, "a llama-server backend is needed"),
        ("/tokenize", {"content": "x"}, 501, "a llama-server backend is needed"),
        ("/api/embed", {"model": "m", "input": "x"}, 501, "does not support embeddings"),
        ("/api/embeddings", {"model": "m", "prompt": "x"}, 500, "does not support embeddings"),
        ("/v1/embeddings", {"input": "x"}, 501, "does not support embeddings"),
        ("/rerank", {"query": "x"}, 501, "does not support reranking"),
        ("/embedding", {"content": "x"}, 501, "does not support embeddings. Start it with `--embeddings`"),
        ("/infill", {"input_prefix": "x"}, 501, "Infill is not supported by this model: prefix token is missing."),
        ("/api/chat", {"model": "embed", "messages": USER}, 400, '"embed" does not support chat'),
        ("/api/generate", {"model": "embed", "prompt": "x"}, 400, '"embed" does not support generate'),
        ("/v1/chat/completions", {"messages": USER}, 400, "no backend can do this with this model: why"),
    ],
)  # fmt: skip
def test_unsupported(path: str, body: dict[str, Any], status: int, words: str) -> None:
    found, _, message = rejection_error(call_of(path, body), Rejection.UNSUPPORTED, "why")
    assert found == status
    assert words in message


def test_too_many_slots_says_how_many_and_says_it_once() -> None:
    call = call_of("/v1/completions", {"prompt": ["a", "b"], "n": 3})
    assert rejection_error(call, Rejection.TOO_MANY_SLOTS, "6 slots, the largest backend runs 4") == (
        400, "", "6 slots, the largest backend runs 4",
    )  # fmt: skip
    assert rejection_error(call, Rejection.TOO_MANY_SLOTS)[2].startswith("the request needs 6 slots at once")
