"""Answers in the making: heads that wait for a slot, faults after some tokens, several jobs in one."""

import asyncio
from typing import Any

import httpx
import pytest

from proxy.emulated import EmulatedEngine
from tests.proxy.emulated.support import chat_body, client_of
from tests.wait import until

PATH = "/v1/chat/completions"


async def test_the_head_of_a_stream_waits_for_a_slot() -> None:
    async with EmulatedEngine(slots=1, speed=1) as engine, client_of(engine) as client:
        first = asyncio.ensure_future(client.post(PATH, json=chat_body(max_tokens=60, stream=True)))
        await until(lambda: engine.busy_slots, "the first runs")
        async with client.stream("POST", PATH, json=chat_body("other", max_tokens=2, stream=True)) as second:
            assert first.done() or engine.waiting == 0
            assert (await second.aread()).endswith(b"data: [DONE]\n\n")
        assert (await first).status_code == 200


async def test_a_death_after_some_tokens_cuts_a_stream() -> None:
    async with EmulatedEngine() as engine, client_of(engine) as client:
        fault = engine.faults.add("die", after_tokens=3, times=1)
        text = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with client.stream("POST", PATH, json=chat_body(max_tokens=20, stream=True)) as answer:
                async for part in answer.aiter_bytes():
                    text += part
        assert text.count(b'"content":"') == 3
        assert fault.befell == 1
        await until(lambda: engine.busy_slots == 0, "the slot is free")
        assert (await client.post(PATH, json=chat_body(max_tokens=2))).status_code == 200


async def test_a_death_before_the_first_token_leaves_nothing() -> None:
    async with EmulatedEngine() as engine, client_of(engine) as client:
        engine.faults.add("die", times=2)
        for stream in (True, False):
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post(PATH, json=chat_body(max_tokens=20, stream=stream))


async def test_a_stream_can_end_without_its_mark() -> None:
    async with EmulatedEngine() as engine, client_of(engine) as client:
        engine.faults.add("unterminated", after_tokens=2, times=1)
        answer = await client.post(PATH, json=chat_body(max_tokens=20, stream=True))
        assert answer.status_code == 200
        assert b"[DONE]" not in answer.content
        assert answer.text.count('"content":"') == 2


async def test_several_choices_come_as_one_answer() -> None:
    async with EmulatedEngine(slots=3) as engine, client_of(engine) as client:
        choices = (await client.post(PATH, json=chat_body(max_tokens=3, n=3))).json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        assert len({choice["message"]["content"] for choice in choices}) == 3
        streamed = await client.post(PATH, json=chat_body(max_tokens=3, n=3, stream=True))
        assert streamed.text.count('"finish_reason":"length"') == 3
        assert streamed.text.count("[DONE]") == 1


async def test_a_problem_of_one_job_is_the_answer_of_all() -> None:
    async with EmulatedEngine(context=64, slots=2) as engine, client_of(engine) as client:
        body: dict[str, Any] = {"prompt": ["short", "word " * 100], "n_predict": 500, "ignore_eos": True}
        answer = await client.post("/completion", json=body)
        assert answer.status_code == 400
        await until(lambda: engine.busy_slots == 0, "the other one has ended")


async def test_an_engine_that_fails_in_mid_stream_says_so_without_end_mark() -> None:
    from proxy.emulated.jobs import Problem

    async with EmulatedEngine(speed=1) as engine, client_of(engine) as client:
        asked = asyncio.ensure_future(client.post(PATH, json=chat_body(max_tokens=100, stream=True)))
        await until(lambda: engine.engines[0].running and engine.engines[0].running[0].decoded > 2, "it speaks")
        engine.engines[0].fail_all(Problem(500, "server_error", "Context size has been exceeded."))
        answer = await asked
        last = answer.text.strip().splitlines()[-1]
        assert last == 'data: {"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}'


async def test_clients_that_leave_are_counted_out() -> None:
    async with EmulatedEngine(slots=1, speed=1, quiet_s=0.1) as engine:
        async with client_of(engine) as client:
            asked = [asyncio.ensure_future(client.post(PATH, json=chat_body(max_tokens=900))) for _ in range(2)]
            await until(lambda: engine.open_requests == 2 and engine.busy_slots == 1, "one runs, one waits")
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: engine.open_requests == 0 and engine.busy_slots == 0, "both are gone")
        assert all(seen.client_left and seen.status == 0 for seen in engine.requests)
