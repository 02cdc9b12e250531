"""Background tasks have an owner, and none dies silently."""

import asyncio

from structlog.testing import capture_logs

from proxy.tasks import Tasks


async def test_a_task_that_fails_is_logged_by_its_name() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with capture_logs() as logs:
        await asyncio.wait([Tasks().start(fail(), "the failing one")])
        await asyncio.sleep(0)

    assert [(line["event"], line["task"]) for line in logs] == [("task failed", "the failing one")]


async def test_close_ends_what_runs() -> None:
    tasks = Tasks()
    task = tasks.start(asyncio.Event().wait(), "forever")
    await tasks.close()

    assert task.cancelled()


async def test_close_waits_for_tasks_that_take_their_time_to_end() -> None:
    ended = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    tasks = Tasks()
    tasks.start(slow(), "slow")
    await asyncio.sleep(0)
    await tasks.close()

    assert ended == [True]
