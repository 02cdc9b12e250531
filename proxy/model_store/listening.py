"""Who hears the progress of a change, each at his own pace. Owns what a slow one has not read: the last of each bar."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from proxy.model_store.grouping import ModelStore
from proxy.model_store.progress import decoded, line
from proxy.model_store.single import Outcome
from proxy.model_store.wishes import Wish

_SHOWN = ("status", "digest", "total", "completed", "error")


class Listener:
    """One who waits for a change."""

    def __init__(self, wish: Wish, *, detailed: bool = False) -> None:
        self.wish = wish
        self.detailed = detailed
        """Hears each model store by itself."""
        self._pending: dict[str, bytes] = {}
        self._outcome: Outcome | None = None
        self._woken = asyncio.Event()

    def hear(self, lines: Iterable[tuple[str, bytes]]) -> None:
        """Take lines; one replaces what was not read yet under the same key."""
        for key, told in lines:
            self._pending[key] = told
            self._woken.set()

    def end(self, outcome: Outcome) -> None:
        """It is over; the first word counts."""
        if self._outcome is None:
            self._outcome = outcome
        self._woken.set()

    async def lines(self, tick_s: float | None = None) -> AsyncIterator[bytes]:
        """What is told, until it is over; nothing (`b""`) each time that nothing was told for so many seconds."""
        while True:
            while self._pending:
                lines, self._pending = b"".join(self._pending.values()), {}
                yield lines
            if self._outcome is not None:
                return
            self._woken.clear()
            try:
                async with asyncio.timeout(tick_s):
                    await self._woken.wait()
            except TimeoutError:
                yield b""

    async def outcome(self) -> Outcome:
        """How it ended."""
        async for _ in self.lines():
            pass
        assert self._outcome is not None  # noqa: S101 - the lines are over
        return self._outcome

    @staticmethod
    def detail(store: ModelStore, raw: bytes) -> tuple[str, bytes] | None:
        """A line of one model store, with its backends in it, and the key under which the next replaces it."""
        told = decoded(raw)
        if not told:
            return None
        shown = {"store": store.shown} | {name: told[name] for name in _SHOWN if name in told}
        key = f"{store.id} {told.get('digest') or told.get('status') or ''}"
        return key, line(shown)
