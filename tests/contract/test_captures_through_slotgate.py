"""Every recorded exchange of a real Ollama through slotgate: what a client gets is what it got from Ollama itself.

The backend is a stand-in that answers what was recorded. Compared are the status, all headers but those of one hop and
the moment, the body's bytes, and where its chunks begin. Every difference there is stands in `DIFFERENCES`, with its
reason; a recording without an entry has none.
"""

import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.contract.exchanges import Exchange, exchanges
from tests.contract.ollama_stand_in import OllamaStandIn, listing
from tests.contract.wire_client import Got, replay
from tests.proxy.box import Box, box
from tests.wait import until

RECORDED = exchanges()

OWN = ("x-slotgate-", "server-timing")
"""Headers that slotgate adds."""
OF_ONE_HOP = ("content-length", "transfer-encoding", "date")
"""Compared apart: the length with the body, the framing with the chunks; Date is the moment."""

LOADED = {
    # What is loaded before, because that is the state the recording was made in.
    "023-ps-one": {"smol": 4096},
    "034-ps-after-90s": {"smol": 4096},
    "064-ps-after-num-ctx": {"smol": 2048},
    "156-ps-two-models": {"smoltools": 4096, "embed": 512},
}

FRESH = {
    # What leaves a backend in a state that others would notice, or needs one that others have not left.
    "004-tags", "005-ps-empty", "070-openai-models", "101-ps-after-unload", *LOADED,
    "063-num-ctx-reload", "100-unload-generate", "102-unload-chat",
    "113-child-killed-mid-stream", "114-child-killed-whole", "116-openai-stream-child-killed",
    "117-anthropic-stream-child-killed", "118-responses-stream-child-killed",
}  # fmt: skip
"""Each has a slotgate of its own; all others share one."""

DEAD = [name for name in RECORDED if name.endswith("stream-child-killed") or name.startswith("113")]

Check = Callable[[Got, Exchange], None]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@contextlib.asynccontextmanager
async def through(tmp_path: Path, stand_in: OllamaStandIn, **config: Any) -> AsyncIterator[Box]:
    """slotgate in front of a stand-in; it has seen what is loaded there."""
    engines: Any = [stand_in]
    async with box(tmp_path, engines, **{"limits": {"max_wait_s": 20}} | config) as running:
        await until(lambda: residencies(running) == len(stand_in.loaded), "it is seen what is loaded")
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Box, OllamaStandIn]]:
    stand_in = OllamaStandIn(listing("smol", "smoltools", "embed"))
    async with through(tmp_path_factory.mktemp("shared"), stand_in) as running:
        yield running, stand_in


def models_of(recorded: Exchange) -> list[str]:
    named = recorded.body.decode()
    wanted = [name for name in ("smol", "smoltools", "embed") if f'"{name}"' in named]
    return list(LOADED.get(recorded.name, ())) or wanted or ["smol"]


async def exchange(name: str, tmp_path: Path, shared: tuple[Box, OllamaStandIn]) -> Got:
    """Send what was recorded to the slotgate that is right for it."""
    recorded = RECORDED[name]
    if name in FRESH:
        stand_in = OllamaStandIn(listing(*models_of(recorded)), recorded, loaded=dict(LOADED.get(name, {})))
        async with through(tmp_path, stand_in) as running:
            return await replay(running.address, recorded, stand_in.go_on.set)
    running, stand_in = shared
    stand_in.exchange = recorded
    stand_in.go_on.clear()
    return await replay(running.address, recorded, stand_in.go_on.set)


def residencies(running: Box) -> int:
    return sum(len(view.residencies) for view in running.app.views())


def headers_of(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    kept = [(name.lower(), value) for name, value in pairs if not name.lower().startswith(OWN)]
    return sorted(pair for pair in kept if pair[0] not in OF_ONE_HOP)


def same(got: Got, recorded: Exchange) -> None:
    """No difference at all."""
    same_head(got, recorded)
    assert got.chunks == recorded.chunks or got.body == recorded.answer == b""
    assert bool(got.header("Transfer-Encoding")) == recorded.chunked
    if recorded.method == "HEAD":
        assert got.header("Content-Length") == [dict(recorded.answer_headers)["Content-Length"]]
    assert got.whole


def same_head(got: Got, recorded: Exchange) -> None:
    assert got.status == recorded.status
    assert headers_of(got.headers) == headers_of(recorded.answer_headers)
    assert [value[-3:] for value in got.header("Date")] == ["GMT"]


# What is different, and why. The reasons are told to users in docs/dialects.md.


def unframed(got: Got, recorded: Exchange) -> None:
    """slotgate answers in one piece with its length where Go's net/http cuts what is longer than 2,048 bytes."""
    same_head(got, recorded)
    assert got.body == recorded.answer


def with_slots(got: Got, recorded: Exchange) -> None:
    """/api/ps has the slots of each model behind Ollama's own fields, and expiries to the microsecond."""
    same_head(got, recorded)
    shown, wanted = got_models(got.body), got_models(recorded.answer)
    assert [list(model) for model in shown] == [[*model, "slots"] for model in wanted]
    for model, expected in zip(shown, wanted, strict=True):
        assert {"id", "state", "backend"} <= model.pop("slots")[0].keys()
        model.pop("expires_at"), expected.pop("expires_at")
        assert model == expected


def got_models(body: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(body)["models"]
    return found


def more_headers_for_pages(got: Got, recorded: Exchange) -> None:
    """Pages may also send the headers of Anthropic's client, an API key and slotgate's own."""
    allowed = "Access-Control-Allow-Headers"
    ours, theirs = dict(got.headers).pop(allowed), dict(recorded.answer_headers)[allowed]
    assert set(theirs.split(",")) < set(ours.split(","))
    same(without(got, allowed), recorded_without(recorded, allowed))


def another_id(got: Got, recorded: Exchange) -> None:
    """The id of a request is made by who answers it."""
    same_head(got, recorded)
    assert without_id(got.body) == without_id(recorded.answer)


def told_why(got: Got, recorded: Exchange) -> None:
    """Where a llama-server could count tokens, and none is there, slotgate says so in Anthropic's form."""
    assert got.status == recorded.status == 404
    assert json.loads(got.body)["error"]["type"] == "not_found_error"


def closed(got: Got, recorded: Exchange) -> None:
    """What changes the model store, or unloads a model, is for administrators."""
    assert got.status == 403
    assert got.header("Content-Type") == ["application/json; charset=utf-8"]
    assert recorded.method == "HEAD" or list(json.loads(got.body)) == ["error"]


def an_error_at_the_end(got: Got, recorded: Exchange) -> None:
    """Ollama ends these streams as if all was well, without their end mark: an error follows, and no proper end."""
    same_head(got, recorded)
    *before, last = got.chunks
    assert before == recorded.chunks
    error = json.loads(last.partition(b"data: ")[2])
    assert b"ended without its end mark" in last
    assert error.get("type") == "error" or "error" in error
    assert last.startswith(b"event: error\n") is not recorded.path.endswith("completions")
    assert not got.whole


def in_pieces(got: Got, recorded: Exchange) -> None:
    """Batches are put together from pieces: the times are slotgate's, and the answer has a length."""
    same_head(got, recorded)
    ours, theirs = json.loads(got.body), json.loads(recorded.answer)
    assert list(ours) == list(theirs)
    for name in ("total_duration", "load_duration"):
        assert type(ours.pop(name, 0)) is type(theirs.pop(name, 0)) is int
    assert ours == theirs
    assert got.body.endswith(b"\n") == recorded.answer.endswith(b"\n")


def without(got: Got, name: str) -> Got:
    return replace(got, headers=[pair for pair in got.headers if pair[0] != name])


def recorded_without(recorded: Exchange, name: str) -> Exchange:
    return replace(recorded, answer_headers=[pair for pair in recorded.answer_headers if pair[0] != name])


def without_id(body: bytes) -> bytes:
    return re.sub(rb"req_[0-9a-f]{24}", b"req_", body)


DIFFERENCES: dict[str, Check] = {
    "006-show": unframed,
    "010-options-cors": more_headers_for_pages,
    "023-ps-one": with_slots,
    "034-ps-after-90s": with_slots,
    "064-ps-after-num-ctx": with_slots,
    "083-anthropic-missing": another_id,
    "084-anthropic-no-max-tokens": another_id,
    "085-anthropic-count-tokens": told_why,
    "090-copy": closed,
    "091-copy-missing": closed,
    "092-delete": closed,
    "093-delete-missing": closed,
    "094-pull-no-network": closed,
    "095-pull-no-network-whole": closed,
    "096-push": closed,
    "097-blob-head-missing": closed,
    "098-create-stream": closed,
    "099-delete-smol3": closed,
    "100-unload-generate": closed,
    "102-unload-chat": closed,
    "116-openai-stream-child-killed": an_error_at_the_end,
    "117-anthropic-stream-child-killed": an_error_at_the_end,
    "118-responses-stream-child-killed": an_error_at_the_end,
    "141-embed-many": in_pieces,
    "147-v1-embeddings": in_pieces,
    "156-ps-two-models": with_slots,
}


@pytest.mark.parametrize("name", RECORDED)
async def test_a_client_gets_what_was_recorded(name: str, tmp_path: Path, shared: tuple[Box, OllamaStandIn]) -> None:
    got = await exchange(name, tmp_path, shared)
    DIFFERENCES.get(name, same)(got, RECORDED[name])


@pytest.mark.parametrize("name", ["100-unload-generate", "102-unload-chat"])
async def test_an_unload_that_is_allowed_is_answered_as_recorded(name: str, tmp_path: Path) -> None:
    recorded = RECORDED[name]
    stand_in = OllamaStandIn(listing("smol"), recorded, loaded={"smol": 4096})
    async with through(tmp_path, stand_in, residency={"clients_may_unload": True}) as running:
        same(await replay(running.address, recorded), recorded)


async def test_what_ollama_itself_cut_short_counts_against_the_backend(tmp_path: Path) -> None:
    for number, name in enumerate(DEAD):
        stand_in = OllamaStandIn(listing("smol"), RECORDED[name])
        async with through(tmp_path / str(number), stand_in) as running:
            await replay(running.address, RECORDED[name], stand_in.go_on.set)
            [ended] = await running.ended(1)
            assert (ended.outcome, running.health()) == ("truncated", "suspect")


async def test_an_answer_that_ollama_ended_because_the_model_repeats_itself(tmp_path: Path) -> None:
    """Not the backend's fault, and not an end: Ollama sends no record that says `done`."""
    stream = RECORDED["030-chat-stream"]
    chunks = [stream.chunks[0], *[re.sub(rb'"content":"[^"]*"', b'"content":"na"', stream.chunks[1])] * 31]
    stand_in = OllamaStandIn(listing("smol"), replace(stream, chunks=chunks))
    async with through(tmp_path, stand_in) as running:
        got = await replay(running.address, stream, stand_in.go_on.set)
        [ended] = await running.ended(1)
        health = running.health()

    assert got.chunks == [*chunks, b'{"error":"the model repeated itself, and the engine ended its answer"}\n']
    assert (ended.outcome, health, got.whole) == ("engine-refused", "ready", False)


async def test_only_what_is_different_has_an_entry() -> None:
    assert DIFFERENCES.keys() <= RECORDED.keys()
    assert RECORDED.keys() >= FRESH
    assert all(check.__doc__ for check in DIFFERENCES.values())
