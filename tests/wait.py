"""Waiting for a condition with a deadline: what tests do instead of sleeping."""

import asyncio
import time
from collections.abc import Awaitable, Callable


async def until(predicate: Callable[[], object | Awaitable[object]], what: str, timeout_s: float = 10.0) -> None:
    """Return once the predicate holds; fail after the timeout, naming what was waited for."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s in vain for: {what}")
        await asyncio.sleep(0.01)


def until_sync(predicate: Callable[[], object], what: str, timeout_s: float = 10.0) -> None:
    """The same for code without an event loop."""
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s in vain for: {what}")
        time.sleep(0.01)
