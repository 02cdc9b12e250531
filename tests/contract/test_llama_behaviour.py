"""What an emulated and a real llama-server both do: caching, slots, the queue, limits, leaving clients, connections."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.contract.conftest import CONTEXT, SLOTS, Subject
from tests.contract.shapes import events
from tests.wait import until

PROMPT = "The quick brown fox jumps over the lazy dog. " * 6


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0, **more}


@asynccontextmanager
async def running(subject: Subject, tokens: int = 400, **more: Any) -> AsyncIterator[httpx.Response]:
    """A native stream that has a slot; leaving the block leaves the stream."""
    body = {"prompt": f"{PROMPT} {more}", "n_predict": tokens, "ignore_eos": True, "stream": True, **more}
    async with subject.client.stream("POST", "/completion", json=body) as answer:
        assert answer.status_code == 200
        yield answer


# -- prefixes and slots


async def test_the_same_prompt_again_computes_one_token(subject: Subject) -> None:
    await subject.post("/v1/chat/completions", chat(PROMPT))
    answer = (await subject.post("/v1/chat/completions", chat(PROMPT))).json()
    prompt = answer["usage"]["prompt_tokens"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == prompt - 1
    assert (answer["timings"]["cache_n"], answer["timings"]["prompt_n"]) == (prompt - 1, 1)


async def test_the_next_turn_of_a_chat_reuses_the_answer_too(subject: Subject) -> None:
    first = (await subject.post("/v1/chat/completions", chat(PROMPT, max_tokens=6))).json()
    said = first["choices"][0]["message"]["content"]
    body = chat(PROMPT)
    body["messages"] += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
    second = (await subject.post("/v1/chat/completions", body)).json()
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    # The answer's last token was never computed; the real tokenizer may cut one more differently.
    held = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
    assert first["usage"]["prompt_tokens"] <= cached <= held


async def test_cache_prompt_off_computes_everything(subject: Subject) -> None:
    await subject.post("/v1/chat/completions", chat(PROMPT))
    answer = (await subject.post("/v1/chat/completions", chat(PROMPT, cache_prompt=False))).json()
    assert answer["timings"]["cache_n"] == 0
    assert answer["timings"]["prompt_n"] == answer["usage"]["prompt_tokens"]


async def test_a_slot_holds_the_prompt_and_all_generated_tokens_but_the_last(subject: Subject) -> None:
    answer = (
        await subject.post("/completion", {"prompt": PROMPT, "n_predict": 7, "ignore_eos": True, "id_slot": 0})
    ).json()
    held = answer["tokens_evaluated"] + 7 - 1
    assert answer["tokens_cached"] == held
    assert (await subject.slots())[0]["n_prompt_tokens"] == held
    assert answer["tokens_predicted"] == 7


async def test_a_shared_prefix_is_found_and_otherwise_the_least_recently_used_slot(subject: Subject) -> None:
    async def slot_of(prompt: str) -> int:
        found: int = (await subject.post("/completion", {"prompt": prompt, "n_predict": 2})).json()["id_slot"]
        return found

    one, other, third = "alpha " * 60, "beta " * 60, "gamma " * 60
    first = await slot_of(one)
    assert await slot_of(other) == 1 - first
    assert await slot_of(one + "and more") == first
    assert await slot_of(other + "and more") == 1 - first
    assert await slot_of(one + "and again") == first
    assert await slot_of(third) == 1 - first  # used longer ago


async def test_a_prefix_of_a_tenth_is_not_enough(subject: Subject) -> None:
    for slot, prompt in enumerate(["alpha " * 60, "beta " * 60]):
        await subject.post("/completion", {"prompt": prompt, "n_predict": 2, "id_slot": slot})
    await subject.post("/completion", {"prompt": "alpha " * 60, "n_predict": 2})  # slot 1 is now the one to go
    answer = (await subject.post("/completion", {"prompt": "alpha " * 9 + "delta " * 150, "n_predict": 2})).json()
    assert (answer["id_slot"], answer["timings"]["cache_n"]) == (1, 0)


async def test_a_busy_slot_does_not_lend_its_prefix(subject: Subject) -> None:
    await subject.post("/completion", {"prompt": PROMPT, "n_predict": 2, "id_slot": 0})
    async with running(subject, prompt=PROMPT + "a", id_slot=0):
        answer = (await subject.post("/completion", {"prompt": PROMPT + "b", "n_predict": 2})).json()
    assert (answer["id_slot"], answer["timings"]["cache_n"]) == (1, 0)


@pytest.mark.parametrize(("named", "expected"), [(0, {0}), (1, {1}), (7, {0, 1})])
async def test_a_named_slot_is_used_and_a_number_without_slot_ignored(
    named: int, expected: set[int], subject: Subject
) -> None:
    answer = await subject.post("/completion", {"prompt": "x y z", "n_predict": 1, "id_slot": named})
    assert answer.status_code == 200
    assert answer.json()["id_slot"] in expected


async def test_a_slot_goes_through_a_file_into_another(subject: Subject) -> None:
    done = (await subject.post("/completion", {"prompt": PROMPT, "n_predict": 3, "id_slot": 0})).json()
    saved = (await subject.post("/slots/0?action=save", {"filename": "p.bin"})).json()
    await subject.erase()
    restored = (await subject.post("/slots/1?action=restore", {"filename": "p.bin"})).json()
    assert saved["n_saved"] == restored["n_restored"] == done["tokens_cached"]
    again = (await subject.post("/completion", {"prompt": PROMPT, "n_predict": 3, "id_slot": 1})).json()
    assert again["timings"]["cache_n"] == done["tokens_evaluated"] - 1


# -- the queue


async def test_what_finds_no_slot_is_deferred_and_answered_in_order(subject: Subject) -> None:
    finished: list[int] = []

    async def ask(number: int) -> None:
        assert (await subject.post("/completion", {"prompt": f"q {number}", "n_predict": 1})).status_code == 200
        finished.append(number)

    async with AsyncExitStack() as stack:
        for number in range(SLOTS):
            await stack.enter_async_context(running(subject, id_slot=number))
        assert (await subject.get("/slots?fail_on_no_slot=1")).status_code == 503
        waiting = []
        for number in range(3):
            waiting.append(asyncio.ensure_future(ask(number)))
            await until(lambda n=number: _deferred(subject, n + 1), "it is deferred")  # type: ignore[misc]
        assert await subject.metric("requests_processing") == SLOTS
    await asyncio.gather(*waiting)
    assert sorted(finished) == [0, 1, 2]
    assert await subject.metric("requests_deferred") == 0
    assert (await subject.get("/slots?fail_on_no_slot=1")).status_code == 200


async def _deferred(subject: Subject, count: int) -> bool:
    return await subject.metric("requests_deferred") == count


async def _idle(subject: Subject) -> bool:
    return not any(slot["is_processing"] for slot in await subject.slots())


async def test_a_client_that_leaves_in_mid_stream_frees_its_slot(subject: Subject) -> None:
    async with running(subject) as answer:
        await anext(answer.aiter_bytes())
        assert sum(slot["is_processing"] for slot in await subject.slots()) == 1

    await until(lambda: _idle(subject), "the slot is idle")
    assert max(slot.get("n_prompt_tokens", 0) for slot in await subject.slots()) < 400


async def test_two_streams_advance_together(subject: Subject) -> None:
    async with running(subject, id_slot=0), running(subject, id_slot=1):
        assert [slot["is_processing"] for slot in await subject.slots()] == [True, True]


# -- limits


async def test_a_prompt_that_fills_the_context_is_refused_alike_streamed_or_not(subject: Subject) -> None:
    for stream in (False, True):
        answer = await subject.post("/v1/chat/completions", chat("word " * CONTEXT, stream=stream))
        assert answer.status_code == 400
        error = answer.json()["error"]
        tokens = error["n_prompt_tokens"]
        assert tokens > CONTEXT
        assert error == {
            "code": 400,
            "message": f"request ({tokens} tokens) exceeds the available context size ({CONTEXT} tokens), "
            "try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": tokens,
            "n_ctx": CONTEXT,
        }


async def test_a_full_context_ends_the_answer(subject: Subject) -> None:
    tokens = (await subject.post("/tokenize", {"content": "word " * CONTEXT})).json()["tokens"]
    for left in (24, 4, 1):
        body = {"prompt": tokens[: CONTEXT - left], "n_predict": 100, "ignore_eos": True, "id_slot": 0}
        answer = (await subject.post("/completion", body)).json()
        assert (answer["tokens_evaluated"], answer["tokens_predicted"]) == (CONTEXT - left, left)
        assert (answer["stop_type"], answer["truncated"], answer["tokens_cached"]) == ("limit", True, CONTEXT - 1)
    assert (await subject.post("/completion", {"prompt": tokens[:CONTEXT], "n_predict": 1})).status_code == 400


async def test_the_prompt_is_counted_alike_everywhere(subject: Subject) -> None:
    body = chat("Count from one to five.")
    text = (await subject.post("/apply-template", body)).json()["prompt"]
    tokens = (await subject.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})).json()
    count = len(tokens["tokens"])
    assert (await subject.post("/v1/messages/count_tokens", body)).json()["input_tokens"] == count
    assert (await subject.post("/v1/chat/completions", body)).json()["usage"]["prompt_tokens"] == count
    assert (await subject.post("/detokenize", tokens)).json()["content"] == text


async def test_counters_add_up(subject: Subject) -> None:
    names = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total")
    before = [await subject.metric(name) for name in names]
    answers = [(await subject.post("/completion", {"prompt": PROMPT, "n_predict": 5})).json() for _ in range(3)]
    after = [await subject.metric(name) for name in names]
    timings = [answer["timings"] for answer in answers]
    sums = [sum(timing[key] for timing in timings) for key in ("prompt_n", "cache_n", "predicted_n")]
    assert [new - old for new, old in zip(after, before, strict=True)] == sums


async def test_a_streamed_answer_is_the_whole_one(subject: Subject) -> None:
    body = chat(PROMPT, max_tokens=12, seed=7)
    whole = (await subject.post("/v1/chat/completions", body)).json()
    streamed = events((await subject.post("/v1/chat/completions", body | {"stream": True})).content)
    assert streamed[-1] == ("", "[DONE]")
    chunks = [chunk["choices"][0] for _, chunk in streamed[:-1]]
    text = "".join(choice["delta"].get("content") or "" for choice in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]


async def test_json_that_was_asked_for_fits_its_schema(subject: Subject) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "count": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["name", "count"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
    answer = (await subject.post("/v1/chat/completions", chat("A thing.", max_tokens=300, response_format=form))).json()
    value = json.loads(answer["choices"][0]["message"]["content"])
    assert set(value) == {"name", "count"}
    assert isinstance(value["name"], str)
    assert 0 <= value["count"] <= 9


# -- connections


async def test_a_connection_is_kept_for_a_hundred_requests(subject: Subject) -> None:
    host, port = subject.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for number in range(100):
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(15)
        kept = b"Keep-Alive: timeout=5, max=100" in head
        assert kept == (number < 99)
        assert (b"Connection: close" in head) != kept
    assert await reader.read() == b""
    writer.close()


@pytest.mark.slow
async def test_an_idle_connection_is_closed_after_five_seconds(subject: Subject) -> None:
    host, port = subject.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b'"ok"}')
    begin = asyncio.get_running_loop().time()
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    assert asyncio.get_running_loop().time() - begin > 4
    writer.close()


async def test_an_error_ends_the_connection(subject: Subject) -> None:
    host, port = subject.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"Connection: close" in head
    async with asyncio.timeout(10):
        await reader.read()
    writer.close()


async def test_pipelined_requests_are_answered_in_order(subject: Subject) -> None:
    host, port = subject.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
    for _ in range(3):
        await reader.readuntil(b'"ok"}')
    writer.close()
