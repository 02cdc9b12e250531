"""Background tasks with an owner: none is lost, none dies silently, all end with their owner."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

log = structlog.get_logger("slotgate.tasks")


class Tasks:
    """A set of background tasks. A task that raises is logged with the given name; `close` cancels the rest."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a coroutine until it ends or `close` is called."""
        task = asyncio.create_task(coroutine, name=name)  # noqa: TID251 - the one owner
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task failed", task=task.get_name(), error=repr(error), exc_info=error)

    async def close(self) -> None:
        """Cancel what still runs and wait for it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
