"""What is told of a request that waits, and of one that waited, in a whole proxy."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from proxy.admin_explain import explain
from proxy.dispatcher import Dispatcher
from proxy.emulated.faults import Kind
from proxy.explained import ExplainAnswer
from proxy.journal import Journal
from proxy.requests import RequestBook
from scheduler.domain import Request
from scheduler.policy import Policy
from tests.proxy.box import Box, box, emulated
from tests.scheduler.test_holding import arrives, busy
from tests.wait import until


def told(running: Box, request_id: str) -> ExplainAnswer | None:
    """What `slotgate explain` would get."""
    return explain(request_id, running.app.journal, running.app.book, running.app._dispatcher)


async def waiting(running: Box) -> ExplainAnswer:
    """Wait until one request waits; what is told of it."""
    scheduler = running.app._dispatcher.scheduler
    await until(lambda: len(scheduler.waiting()) == 1, "a request waits")
    answer = told(running, scheduler.waiting()[0].request.id)
    assert answer is not None
    return answer


async def test_a_request_that_waits_for_a_seat(tmp_path: Path) -> None:
    engine = emulated(slots=1)
    async with box(tmp_path, [engine]) as running:
        engine.faults.add(Kind.HANG, times=1)
        first = asyncio.ensure_future(running.generate("one"))
        await until(lambda: engine.open_requests, "the first one runs")
        headers = {"X-Slotgate-Priority": "low"}
        body = {"model": "smol", "prompt": "two", "stream": False}
        second = asyncio.ensure_future(running.client.post("/api/generate", json=body, headers=headers))
        answer = await waiting(running)
        runs = told(running, running.app._dispatcher.live()[0].id)
        first.cancel()
        got = await second
        await running.ended(2)
        after = told(running, answer.id)

    assert answer.live is not None
    assert answer.wait is not None
    assert (answer.live.state, answer.live.tenant, answer.live.priority) == ("waiting", "127.0.0.1", "low")
    assert (answer.wait.waits, answer.wait.position, answer.outcome, answer.request) == (True, 1, None, None)
    assert answer.wait.waited_s >= 0
    assert (answer.wait.held_until_unix_s, answer.wait.tenant_running) == (None, None)
    decision = answer.decisions[-1]
    assert (decision.waits, decision.ranking) == (True, [])
    assert (decision.rejections, decision.details) == ({"gpu0": "no-room"}, {"gpu0": "1 of 1 seats taken"})

    assert runs is not None
    assert runs.live is not None
    assert (runs.live.state, runs.live.backend, runs.wait) == ("running", "gpu0", None)

    assert after is not None
    assert after.wait is not None
    assert after.request is not None
    assert (after.id, after.outcome) == (got.headers["X-Slotgate-Request"], "done")
    assert (after.wait.waits, after.wait.position, after.request.priority) == (False, 1, "low")
    assert after.wait.waited_s >= answer.wait.waited_s
    assert not after.decisions[-1].waits


class Holding:
    """A dispatcher as far as it is asked: `a` has the long prompt and is full, `b` is idle, and `r` waits for `a`."""

    def __init__(self) -> None:
        self.world = busy(Policy(hold_s=2.0))
        assert arrives(self.world) == []
        self.scheduler = self.world.scheduler

    def clock(self) -> float:
        return self.world.now_s

    def live(self) -> list[Request]:
        return [ticket.request for ticket in self.scheduler.waiting()]


def test_a_request_that_holds_for_the_backend_that_has_its_prompt() -> None:
    holding = Holding()
    answer = explain("r", Journal(), RequestBook(None), cast("Dispatcher", holding))

    assert answer is not None
    assert answer.wait is not None
    [decision] = answer.decisions
    assert ([each.backend for each in decision.ranking], decision.rejections) == (["b"], {"a": "no-room"})
    assert (decision.details, decision.tenant_full) == ({"a": "1 of 1 seats taken"}, False)
    assert answer.wait.held_until_unix_s is not None
    assert decision.holds_s == pytest.approx(2.0, abs=0.1)
    assert answer.wait.held_for == "a"
    assert answer.wait.held_for_tokens == pytest.approx(30_000, rel=0.1)
    assert decision.ranking[0].reused_tokens == 0


async def test_a_request_whose_tenant_runs_as_much_as_it_may(tmp_path: Path) -> None:
    engine = emulated(slots=2)
    async with box(tmp_path, [engine], policy={"set": {"tenant_max_running": 1}}) as running:
        engine.faults.add(Kind.HANG)
        asked = [asyncio.ensure_future(running.generate(text)) for text in ("one", "two")]
        answer = await waiting(running)
        for each in asked:
            each.cancel()

    assert answer.wait is not None
    assert (answer.wait.tenant_running, answer.wait.held_until_unix_s) == (1, None)
    assert (answer.decisions[-1].tenant_full, len(answer.decisions[-1].ranking)) == (True, 1)


async def test_a_client_that_left_the_line(tmp_path: Path) -> None:
    engine = emulated(slots=1)
    async with box(tmp_path, [engine]) as running:
        engine.faults.add(Kind.HANG)
        first = asyncio.ensure_future(running.generate("one"))
        await until(lambda: engine.open_requests, "the first one runs")
        second = asyncio.ensure_future(running.generate("two"))
        request_id = (await waiting(running)).id
        second.cancel()
        await running.ended(1)
        answer = told(running, request_id)
        first.cancel()

    assert answer is not None
    assert answer.request is not None
    assert answer.wait is not None
    assert (answer.request.outcome, answer.request.termination) == ("client-left", "CQ")
    assert (answer.wait.waits, answer.wait.position) == (False, 1)


async def test_nothing_is_known(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]) as running:
        await running.generate()
        assert told(running, "nobody") is None


def test_the_decision_by_which_it_waits_is_told_once() -> None:
    holding, journal = Holding(), Journal(clock=lambda: 100.0)
    [ticket] = holding.scheduler.waiting()
    assert ticket.decision is not None
    journal.waits("r", ticket.decision, 2.0, ticket.request, holding.scheduler.snapshot(holding.clock()))
    answer = explain("r", journal, RequestBook(None), cast("Dispatcher", holding))
    assert answer is not None
    assert [(each.at_unix_s, each.waits) for each in answer.decisions] == [(100.0, True)]
