"""Where a conversation goes on: on the slot that holds it, in every dialect, and told beforehand."""

import asyncio
import json
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from proxy.emulated.emulated_engine import EmulatedEngine, Seen
from proxy.emulated.faults import Kind
from tests.proxy.box import MODEL, Box, box, emulated
from tests.wait import until

CLOSE_TOKENS = 64
"""As near as a prediction must come."""
SYSTEM = "You are the guide of a museum of computing, and answer in short sentences. " * 20


def last_run(engine: EmulatedEngine) -> Seen:
    """The last request that ran on a slot."""
    return next(seen for seen in reversed(engine.requests) if seen.jobs)


def _delta(line: str) -> str:
    choices = json.loads(line.removeprefix("data: "))["choices"]
    return (choices[0]["delta"].get("content") or "") if choices else ""


def _streamed(answer: httpx.Response) -> str:
    return "".join(_delta(line) for line in answer.text.splitlines() if line.startswith("data: {"))


DIALECTS: dict[str, tuple[str, dict[str, Any], Callable[[httpx.Response], str]]] = {
    "ollama": (
        "/api/chat",
        {"stream": False, "options": {"num_predict": 40}},
        lambda answer: answer.json()["message"]["content"],
    ),
    "openai": (
        "/v1/chat/completions",
        {"max_completion_tokens": 40},
        lambda answer: answer.json()["choices"][0]["message"]["content"],
    ),
    "openai stream": ("/v1/chat/completions", {"max_tokens": 40, "stream": True}, _streamed),
    "anthropic": ("/v1/messages", {"max_tokens": 40}, lambda answer: answer.json()["content"][0]["text"]),
}


class Talk:
    """One conversation in one dialect."""

    def __init__(self, dialect: str, opening: str = "") -> None:
        self.system = opening + SYSTEM
        self.path, self.more, self.text_of = DIALECTS[dialect]
        self.said: list[dict[str, str]] = []

    async def turn(self, running: Box, text: str) -> httpx.Response:
        self.said.append({"role": "user", "content": text})
        body = {"model": MODEL, **self.more}
        if self.path == "/v1/messages":
            body |= {"system": self.system, "messages": self.said}
        else:
            body["messages"] = [{"role": "system", "content": self.system}, *self.said]
        answer = await running.client.post(self.path, json=body)
        assert answer.status_code == 200, answer.text
        self.said.append({"role": "assistant", "content": self.text_of(answer)})
        return answer


async def predicted_and_told(running: Box, answer: httpx.Response) -> tuple[int | None, int | None]:
    """Tokens that should have been cached for an answer, and those that the engine reported."""
    request_id = answer.headers["X-Slotgate-Request"]
    await until(lambda: any(each.id == request_id for each in running.recent()), "the request has ended")
    [ended] = [each for each in running.recent() if each.id == request_id]
    return ended.predicted_cached_tokens, ended.cached_tokens


@pytest.mark.parametrize("dialect", ["ollama", "openai", "openai stream"])
async def test_a_second_turn_runs_on_the_slot_that_holds_the_first(tmp_path: Path, dialect: str) -> None:
    engines = [emulated(slots=4), emulated(slots=4)]
    async with box(tmp_path, engines) as running:
        talks = [Talk(dialect, f"Guide {number}. ") for number in range(3)]
        places = [await _place(running, talk, f"Good morning, I am number {n}.") for n, talk in enumerate(talks)]
        for turn in range(3):
            for talk, place in zip(talks, places, strict=True):
                assert await _place(running, talk, f"And what is in room {turn}?") == place
                ended = running.recent()[-1]
                predicted, told = ended.predicted_cached_tokens, ended.cached_tokens
                assert predicted is not None
                assert told is not None
                assert told > 300
                assert abs(predicted - told) <= CLOSE_TOKENS
        assert [engine.deferred_max for engine in engines] == [0, 0]

    assert len(set(places)) == 3


async def _place(running: Box, talk: Talk, text: str) -> tuple[str, int]:
    """Backend and slot of one turn, as the engine saw it; slotgate must have named the slot."""
    before = len(running.recent())
    answer = await talk.turn(running, text)
    await running.ended(before + 1)
    backend = answer.headers["X-Slotgate-Backend"]
    seen = last_run(running.engines[int(backend[-1])])
    slot = seen.fields["id_slot"]
    assert [job.slot.id for job in seen.jobs if job.slot is not None] == [slot]
    assert running.recent()[-1].slot == slot
    assert f"[slot={slot},reused=" in answer.headers["X-Slotgate-Decision"]
    return backend, slot


async def test_prompts_of_llama_servers_own_api_too(tmp_path: Path) -> None:
    engine = emulated(slots=4)
    async with box(tmp_path, [engine]) as running:
        body: dict[str, Any] = {"prompt": SYSTEM * 4, "n_predict": 30, "id_slot": 3}
        for _ in range(2):
            answer = await running.client.post("/completion", json=body)
            predicted, told = await predicted_and_told(running, answer)
            assert last_run(engine).fields["id_slot"] == answer.json()["id_slot"] == running.recent()[-1].slot
            body["prompt"] += answer.json()["content"]

    assert predicted is not None
    assert told is not None
    assert told > 300
    assert abs(predicted - told) <= CLOSE_TOKENS


async def test_requests_that_cannot_name_a_slot_run_beside_those_that_do(tmp_path: Path) -> None:
    engine = emulated(slots=6, speed=5000.0)
    async with box(tmp_path, [engine]) as running:
        for turn in range(4):
            if turn == 0:
                talks = [Talk(dialect) for dialect in ("ollama", "anthropic", "openai", "anthropic")]
            await asyncio.gather(*(talk.turn(running, f"{turn} {n}") for n, talk in enumerate(talks)))
        await running.ended(16)
        ended = running.recent()

        assert not any("id_slot" in seen.fields for seen in engine.requests if seen.path == "/v1/messages")
        assert engine.deferred_max == 0
        last = [each for each in ended if (each.cached_tokens or 0) > 300]
        assert len(last) >= 8, [(each.dialect, each.cached_tokens) for each in ended]
        assert running.app.admin.status().backends[0].foreign_busy == 0


async def test_a_restarted_engine_holds_nothing(tmp_path: Path) -> None:
    engine = emulated(slots=2)
    async with box(tmp_path, [engine]) as running:
        talk = Talk("ollama")
        await talk.turn(running, "Good morning.")
        answer = await talk.turn(running, "Who are you?")
        predicted, told = await predicted_and_told(running, answer)
        assert min(predicted or 0, told or 0) > 300
        before = (await running.status()).backends[0].epoch
        engine.kill()
        await engine.start()
        await until(lambda: running.app.admin.status().backends[0].epoch > before, "the restart was seen", 15)
        await until(lambda: running.health() == "ready", "it is ready again", 15)
        answer = await talk.turn(running, "Do you remember?")

        assert await predicted_and_told(running, answer) == (0, 0)


async def test_clients_who_say_that_nothing_shall_be_reused(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]) as running:
        for _ in range(2):
            body = {"messages": [{"role": "user", "content": SYSTEM}], "max_tokens": 5, "cache_prompt": False}
            answer = await running.client.post("/v1/chat/completions", json=body)

        assert await predicted_and_told(running, answer) == (None, 0)


async def test_what_an_answer_cost_is_learned(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]) as running:
        answers = [await Talk(dialect).turn(running, "Hello.") for dialect in DIALECTS]
        await running.ended(len(answers))
        learned = [running.app.journal.explain(answer.headers["X-Slotgate-Request"]) for answer in answers]

    costs = [each.answer for each in learned if each is not None and each.answer is not None]
    assert len(costs) == len(answers)
    for path, cost in zip([path for path, _, _ in DIALECTS.values()], costs, strict=True):
        assert (cost.prompt_tokens or 0) > 300
        assert cost.output_tokens == 40
        assert (cost.first_byte_ms is None) is (path == "/v1/messages")  # whole, and without the engine's own times


async def test_a_full_line_serves_each_client_in_turn(tmp_path: Path) -> None:
    engine = emulated(slots=1)
    async with box(tmp_path, [engine], policy={"set": {"quantum_tokens": 50}}) as running:
        engine.faults.add(Kind.FREEZE)
        many = {"Authorization": "Bearer sk-many"}
        crowd = [asyncio.ensure_future(_ask(running, f"crowd {number}", many)) for number in range(6)]
        await until(lambda: running.app.requests == 6, "the crowd waits")
        alone = asyncio.ensure_future(_ask(running, "alone", {"X-OpenWebUI-User-Id": "joe"}))
        await until(lambda: running.app.requests == 7, "another client waits")
        engine.faults.clear()
        await asyncio.gather(*crowd, alone)
        await running.ended(7)
        order = [each.tenant for each in running.recent()]

    assert {tenant.partition(":")[0] for tenant in order} == {"key", "user"}
    assert order.index("user:joe") <= 2


async def _ask(running: Box, prompt: str, headers: dict[str, str]) -> httpx.Response:
    body = {"model": MODEL, "prompt": prompt, "stream": False, "options": {"num_predict": 10}}
    return await running.client.post("/api/generate", json=body, headers=headers)


async def test_a_request_of_higher_priority_goes_first_and_waiting_is_told(tmp_path: Path) -> None:
    engine = emulated(slots=1)
    async with box(tmp_path, [engine]) as running:
        engine.faults.add(Kind.FREEZE)
        asked: list[asyncio.Future[httpx.Response]] = []
        for number, priority in enumerate(["normal", "low", "normal", "high"]):
            headers = {"X-Slotgate-Priority": priority}
            asked.append(asyncio.ensure_future(_ask(running, f"{number} {priority}", headers)))
            await until(lambda: running.app.requests == len(asked), "it is there")
        engine.faults.clear()
        answers = await asyncio.gather(*asked)
        order = [answer.headers["X-Slotgate-Request"] for answer in answers]
        ended = [each.id for each in await running.ended(4)]

    assert [order.index(request_id) for request_id in ended] == [0, 3, 2, 1]
    places = [answer.headers.get("X-Slotgate-Queue-Position") for answer in answers]
    assert places == [None, "1", "1", "1"]
    waits = [answer.headers.get("X-Slotgate-Expected-Wait") for answer in answers]
    assert waits[0] is None
    assert all(float(wait) > 0 for wait in waits[1:] if wait is not None)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"model": MODEL, "messages": []}),
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}),
        ("/completion", {"prompt": "x"}),
    ],
)
async def test_a_priority_that_there_is_none_of(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    async with box(tmp_path, [emulated()]) as running:
        answer = await running.client.post(path, json=body, headers={"X-Slotgate-Priority": "urgent"})

    assert answer.status_code == 400
    error = answer.json()["error"]
    text = error if isinstance(error, str) else error["message"]
    assert text == "X-Slotgate-Priority: 'urgent' is not one of high, normal, low"


async def test_slots_are_left_to_an_engine_that_somebody_else_uses(tmp_path: Path) -> None:
    engine = emulated(slots=4, speed=1.0)
    with structlog.testing.capture_logs() as logged:
        async with box(tmp_path, [engine]) as running, httpx.AsyncClient(base_url=engine.url, timeout=30) as around:
            endless = {"prompt": "x", "stream": True, "ignore_eos": True}
            async with around.stream("POST", "/completion", json=endless):
                await until(lambda: _choices(logged)[-1:] == [False], "the choice is the engine's", 15)
            await until(lambda: _choices(logged)[-1:] == [True], "slots are named again", 15)
            await Talk("ollama").turn(running, "Hello.")

    assert _choices(logged) == [True, False, True]
    assert all(entry["backend"] == "gpu0" and entry["because"] for entry in logged if "slots" in entry["event"])
    assert last_run(engine).fields["id_slot"] in range(4)


def _choices(logged: list[MutableMapping[str, Any]]) -> list[bool]:
    texts = {"slots named by slotgate": True, "slots left to the engine": False}
    return [texts[entry["event"]] for entry in logged if entry["event"] in texts]


async def test_a_refusal_is_explained_too(tmp_path: Path) -> None:
    engine = emulated(slots=1)
    async with box(tmp_path, [engine], policy={"set": {"tenant_max_waiting": 1}}) as running:
        engine.faults.add(Kind.FREEZE)
        asked = [asyncio.ensure_future(running.generate(f"story {number}")) for number in range(2)]
        await until(lambda: running.app.requests == 2, "one runs and one waits")
        refused = await running.generate()
        engine.faults.clear()
        await asyncio.gather(*asked)
        explained = running.app.journal.explain(refused.headers["X-Slotgate-Request"])

    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) >= 1
    assert "1 requests of this client wait already" in refused.json()["error"]
    assert explained is not None
    assert [decision.rejections for decision in explained.decisions] == [{"gpu0": "no-room"}]
    assert explained.outcome == "rejected"
