"""One request's side of the dispatcher: it waits, is refused, or is not needed any more."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from proxy.dispatcher import Dispatcher
from proxy.journal import Journal
from proxy.store import Store
from proxy.ticketed import Refused, Withdrawn
from scheduler.core import Scheduler
from scheduler.domain import Decision, Failure, Outcome, Rejection
from scheduler.effects import Reject
from scheduler.events import BackendChanged
from scheduler.policy import Policy
from tests.scheduler.world import backend, request


@contextlib.asynccontextmanager
async def dispatcher() -> AsyncIterator[Dispatcher]:
    """One whose store cannot be reached, with one backend that still starts: what is submitted waits."""
    made = Dispatcher(
        Scheduler(Policy()), Store("unix:///nowhere", fleet="test", proxy_id="one"), Journal(), lambda: 1.0
    )
    made.feed(BackendChanged(backend()))
    try:
        yield made
    finally:
        await made.close()


async def test_a_request_that_nobody_needs_any_more_leaves_the_line() -> None:
    async with dispatcher() as made:
        idle: list[int] = []
        made.on_idle = lambda: idle.append(made.requests)
        ticketed = made.submit(request("r1"))
        assert [ticket.request.id for ticket in made.scheduler.waiting()] == ["r1"]
        waiting = asyncio.ensure_future(ticketed.assignment())
        await asyncio.sleep(0)

        ticketed.withdraw()

        assert made.scheduler.waiting() == ()
        with pytest.raises(Withdrawn):
            await waiting
        ticketed.withdraw()
        ticketed.close()
        ticketed.close()
        assert made.requests == 0
        assert idle[0] == 0


async def test_a_request_that_is_over_cannot_be_withdrawn() -> None:
    async with dispatcher() as made:
        ticketed = made.submit(request("r1"))
        ticketed.ended(Outcome.REJECTED)
        waiting = asyncio.ensure_future(ticketed.assignment())
        ticketed.withdraw()
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        ticketed.close()


@pytest.mark.parametrize(
    ("error_body", "said"),
    [
        (b'{"error":{"code":500,"message":"%s"}}' % (b"x" * 5000), "x" * 5000),
        (b' {"error": "llama runner process has terminated"}\n', "llama runner process has terminated"),
        (b"<h1>Bad Gateway</h1>", ""),
        (b"", ""),
    ],
)
async def test_what_the_last_engine_said_is_told_where_no_try_is_left(error_body: bytes, said: str) -> None:
    async with dispatcher() as made:
        ticketed = made.submit(request("r1"))
        ticketed.failed(Failure.ENGINE_ERROR, "its first words only", error_body)

        ticketed.settle(Reject("r1", Rejection.RETRIES_SPENT, "no backend is left"))

        with pytest.raises(Refused) as refused:
            await ticketed.assignment()
        assert refused.value.engine_said == said


def test_a_refusal_tells_the_numbers_of_the_first_backends_only() -> None:
    details = {f"gpu{number}": f"{number} of 8 GiB free" for number in range(5)}
    decision = Decision("r1", details=details)

    refused = Refused(Reject("r1", Rejection.NO_MEMORY, "no card has room", 3.0, decision))

    assert refused.detail == "no card has room; gpu0: 0 of 8 GiB free; gpu1: 1 of 8 GiB free; gpu2: 2 of 8 GiB free"
    assert refused.retry_after_s == 3.0
