"""The engines' own counters, read beside a load: the truth about what slotgate sends them."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

from proxy.backends.control import Control
from proxy.endpoint import Endpoint
from tests.slotgate_process import SlotgateProcess


class Gauges:
    """The most that was seen at any one engine."""

    def __init__(self, running: SlotgateProcess) -> None:
        self.controls = [Control(_endpoint(running, backend.name), 10) for backend in running.backends()]
        self.processing = 0
        self.deferred = 0
        self.samples = 0

    async def watch(self, every_s: float) -> None:
        """Sample for ever."""
        while True:
            for control in self.controls:
                text = (await control.get("/metrics")).body.decode()
                processing = re.search(r"^llamacpp:requests_processing (\d+)", text, re.MULTILINE)
                deferred = re.search(r"^llamacpp:requests_deferred (\d+)", text, re.MULTILINE)
                assert processing is not None
                assert deferred is not None
                self.processing = max(self.processing, int(processing[1]))
                self.deferred = max(self.deferred, int(deferred[1]))
                self.samples += 1
            await asyncio.sleep(every_s)


@contextlib.asynccontextmanager
async def gauges(running: SlotgateProcess, every_s: float = 0.5) -> AsyncIterator[Gauges]:
    """Sample within the block; more often than by default would itself disturb the engines under a long load."""
    seen = Gauges(running)
    watching = asyncio.ensure_future(seen.watch(every_s))
    try:
        yield seen
    finally:
        if watching.done():
            watching.result()
        watching.cancel()
        for control in seen.controls:
            await control.close()


def _endpoint(running: SlotgateProcess, name: str) -> Endpoint:
    backend = next(each for each in running.backends() if each.name == name)
    [key_file] = running.state_dir.rglob(f"{name}.key")
    headers = (("Authorization", f"Bearer {key_file.read_text().strip()}"),)
    return Endpoint("localhost", unix_path=backend.endpoint.removeprefix("unix:"), headers=headers)
