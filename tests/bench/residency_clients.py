"""The clients of the residency benchmark over HTTP: each asks once, when it is due, and notes what it got and when."""

import asyncio
import re
import time
from collections.abc import Sequence

import aiohttp
import msgspec

from scheduler.names import canonical
from tests.bench.residency_figures import Served
from tests.bench.residency_traffic import Ask, body

SAYS = re.compile(rb'"(?:content|response|text)":"[^"]')
"""What the first token of an answer looks like in any of the APIs; heads, marks and heartbeats have empty texts."""
ENDS = re.compile(rb'"done":true|\[DONE\]|"message_stop"')
"""What a whole answer ends with."""
LOADED_AFTER = re.compile(rb'"load_duration":(\d+)')
"""Nanoseconds until an Ollama had the model loaded for a request, in the end of its own API's answers."""
TAIL = 32_768
"""Bytes that hold the end of an answer: the one of /api/generate repeats all tokens."""
CUT = "cut"
"""The problem of one that was not answered in time."""


class Got(msgspec.Struct):
    """One request as its client saw it."""

    ask: Ask
    arrived_s: float
    first_s: float = float("inf")
    ended_s: float = float("inf")
    backend: str = ""
    """Who answered, as the proxy says: a name, or an address."""
    request_id: str = ""
    load_s: float = 0.0
    """Until the engine had the model loaded, as it says itself."""
    problem: str = ""


class Clients:
    """All clients of a run."""

    def __init__(self, port: int, speed: float) -> None:
        """`speed`: how many times faster than the engines' time it goes."""
        self.got: list[Got] = []
        self._url = f"http://127.0.0.1:{port}"
        self._speed = speed

    async def run(self, asks: Sequence[Ask], patience_s: float) -> tuple[float, float]:
        """Ask all; whoever has no whole answer `patience_s` after the last one is due is cut. Returns start and end.

        Args:
            asks: by arrival.
            patience_s: in the engines' time.

        Returns:
            When the first one could have come, and when all were answered or cut, on the monotonic clock.
        """
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        payloads = [msgspec.json.encode(body(ask)) for ask in asks]  # before the clock starts: it takes a while
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            start_s = time.monotonic()
            end_s = start_s + (asks[-1].at_s + patience_s) / self._speed
            async with asyncio.TaskGroup() as group:
                for ask, payload in zip(asks, payloads, strict=True):
                    group.create_task(self._one(http, ask, payload, start_s + ask.at_s / self._speed, end_s))
        return start_s, time.monotonic()

    async def _one(self, http: aiohttp.ClientSession, ask: Ask, payload: bytes, due_s: float, end_s: float) -> None:
        await asyncio.sleep(due_s - time.monotonic())
        got = Got(ask, time.monotonic())
        self.got.append(got)
        try:
            async with asyncio.timeout(end_s - time.monotonic()):
                await self._ask(http, got, payload)
        except TimeoutError:
            got.problem = CUT
        except (aiohttp.ClientError, OSError) as error:
            got.problem = repr(error)

    async def _ask(self, http: aiohttp.ClientSession, got: Got, payload: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        async with http.post(self._url + got.ask.kind.path, data=payload, headers=headers) as response:
            got.backend = response.headers.get("X-Slotgate-Backend", response.headers.get("X-Backend", ""))
            got.request_id = response.headers.get("X-Slotgate-Request", "")
            if response.status != 200:
                got.problem = f"{response.status} {(await response.text())[:300]}"
                return
            tail = b""
            async for data in response.content.iter_any():
                tail = (tail + data)[-TAIL:]
                if got.first_s == float("inf") and SAYS.search(tail):
                    got.first_s = time.monotonic()
        got.ended_s = time.monotonic()
        if not ENDS.search(tail):
            got.problem = f"ended with {tail[-200:]!r}"
        elif found := LOADED_AFTER.search(tail):
            got.load_s = int(found[1]) / 1e9


def served(got: Got, default_context: int, backend: int, started_s: float) -> Served:
    """The same in the words of the figures."""
    kind = got.ask.kind
    return Served(
        got.ask.number,
        canonical(got.ask.model),
        kind.num_ctx or default_context,
        kind.path.startswith("/v1/"),
        got.arrived_s,
        backend,
        started_s,
        got.first_s,
        got.ended_s,
        got.problem,
    )
