"""Conversations on a real engine: each turn runs on the slot that holds the one before, which slotgate foretells."""

import asyncio
import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from proxy.admin_api import RecentRequest
from tests.real_engine import MODEL_NAME
from tests.slotgate_process import SlotgateProcess, real_config, slotgate
from tests.stories.gauges import Gauges, gauges

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(560)]

REQUESTS = int(os.environ.get("SLOTGATE_TURNS", "300"))
AT_ONCE = 4
SLOTS = 8
CLOSE_TOKENS = 64
SYSTEMS = [
    f"You are a guide of the {place}. Answer in short sentences, and never speak of the prices. " * 6
    for place in ("museum of computing", "botanical garden", "old harbour")
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlotgateProcess]:
    directory = tmp_path_factory.mktemp("box")
    config = real_config(directory / "state", backends=1, slots=SLOTS, running_limit=AT_ONCE)
    config = config.replace(
        "count = 1\n", "count = 1\nthreads = 1\n"
    )  # several would wait for each other on a busy box
    with slotgate(directory, config) as process:
        process.wait_ready(1)
        yield process


class Chat:
    """One conversation, in one of several dialects."""

    def __init__(self, number: int, paths: tuple[str, ...]) -> None:
        self.number = number
        self.dice = random.Random(number)
        self.path = self.dice.choice(paths)
        self.system = SYSTEMS[self.dice.randrange(3)]
        self.said: list[dict[str, str]] = []
        self.turns = self.dice.randint(2, 6)

    def body(self) -> dict[str, Any]:
        topic = self.dice.choice(("the first room", "opening hours", "its oldest part", "the way out", "children"))
        question = f"Visitor {self.number} would like to know more about {topic}. What can you tell?"
        self.said.append({"role": "user", "content": question})
        tokens, own = self.dice.randint(2, 12), {"role": "system", "content": self.system}
        if self.path == "/api/chat":
            options = {"num_predict": tokens}
            return {"model": MODEL_NAME, "messages": [own, *self.said], "stream": False, "options": options}
        body: dict[str, Any] = {"model": MODEL_NAME, "messages": self.said, "max_tokens": tokens}
        return body | ({"system": self.system} if self.path == "/v1/messages" else {"messages": [own, *self.said]})

    async def turn(self, client: httpx.AsyncClient) -> None:
        """One question and its answer, or a client that loses patience."""
        body = self.body()
        if self.dice.random() < 0.03:
            with contextlib.suppress(httpx.ReadTimeout):
                await client.post(self.path, json=body, timeout=0.3)
            self.said.pop()
            return
        answer = await client.post(self.path, json=body)
        assert answer.status_code == 200, answer.text
        value = answer.json()
        if self.path == "/v1/messages":
            text = value["content"][0]["text"] if value["content"] else ""
        else:
            message = value["message"] if self.path == "/api/chat" else value["choices"][0]["message"]
            text = message["content"]
        self.said.append({"role": "assistant", "content": text})


async def talk(client: httpx.AsyncClient, left: list[int], paths: tuple[str, ...]) -> None:
    """One conversation after another, until all requests are spent."""
    while left:
        chat = Chat(left[-1], paths)
        for _ in range(chat.turns):
            if left:
                left.pop()
                await chat.turn(client)


def _told(ended: list[RecentRequest]) -> list[RecentRequest]:
    return [each for each in ended if each.cached_tokens is not None and each.predicted_cached_tokens is not None]


async def _all(running: SlotgateProcess, count: int, *paths: str) -> tuple[Gauges, list[RecentRequest]]:
    """Hold conversations of so many requests; what the engine showed meanwhile, and how they ended."""
    ended: list[RecentRequest] = []
    async with (
        gauges(running) as seen,
        httpx.AsyncClient(base_url=running.url, timeout=240, limits=httpx.Limits(max_connections=AT_ONCE)) as client,
    ):
        while len(ended) < count:  # only so many are remembered
            part = min(250, count - len(ended))
            left = list(range(len(ended), len(ended) + part))
            await asyncio.gather(*(talk(client, left, paths) for _ in range(AT_ONCE)))
            ended += (await asyncio.to_thread(running.admin.recent))[-part:]
    return seen, ended


async def test_turns_find_what_slotgate_said_they_would(running: SlotgateProcess) -> None:
    seen, ended = await _all(running, REQUESTS, "/api/chat", "/v1/chat/completions")
    done = _told([each for each in ended if each.outcome == "done"])
    close = [each for each in done if abs(each.cached_tokens - each.predicted_cached_tokens) <= CLOSE_TOKENS]  # type: ignore[operator]
    cached, prompts = sum(each.cached_tokens or 0 for each in done), sum(each.prompt_tokens or 0 for each in done)
    print(f"{len(close)} of {len(done)} within {CLOSE_TOKENS}; {cached} of {prompts} tokens cached")

    assert len(ended) == REQUESTS
    assert seen.deferred == 0
    assert seen.processing <= AT_ONCE
    assert any(each.outcome == "client-left" for each in ended)
    assert len(close) >= 0.95 * len(done) >= 0.6 * REQUESTS
    assert cached > 0.7 * prompts


async def test_those_that_cannot_name_a_slot_fill_no_queue_either(running: SlotgateProcess) -> None:
    seen, ended = await _all(running, 60, "/api/chat", "/v1/messages")

    assert {each.dialect for each in ended} == {"ollama", "anthropic"}
    assert seen.deferred == 0
    assert seen.processing <= AT_ONCE
