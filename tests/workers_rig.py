"""slotgate with several workers, as users run it: its own processes, before emulated engines in the test's loop."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import httpx
import orjson

from proxy.admin_api import StatusAnswer, WorkersAnswer, WorkerStatus
from proxy.admin_client import AdminClient, AdminError
from proxy.emulated.emulated_engine import EmulatedEngine
from tests.wait import until

Answer = TypeVar("Answer")

MODEL = "smol"
AS_SYSTEMD = """
import os, sys
os.dup2(int(os.environ.pop("SOCKET")), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.executable, [sys.executable, "-m", "proxy", *sys.argv[1:]])
"""
"""Starts slotgate with an inherited socket, as sd_listen_fds(3) says."""
STREAM = {"model": MODEL, "prompt": "Once upon a time", "stream": True}


class WorkersRig:
    """The main process, and what a test asks of it."""

    def __init__(self, process: asyncio.subprocess.Process, state_dir: Path, log: Path) -> None:
        self.process = process
        self.state_dir = state_dir
        self.log = log
        self.admin = AdminClient(state_dir / "admin.sock")

    async def ask(self, question: Callable[..., Answer], *arguments: Any) -> Answer:
        """Ask the admin socket, beside the loop that the engines run in."""
        return await asyncio.to_thread(question, *arguments)

    async def status(self) -> StatusAnswer:
        return await self.ask(self.admin.status)

    async def workers(self) -> list[WorkerStatus]:
        return (await self.ask(self.admin.workers)).workers

    async def serving(self) -> dict[int, int]:
        """Number and pid of the workers that serve."""
        return {worker.number: worker.pid for worker in await self.workers() if worker.state == "serving"}

    async def wait_ready(self, workers: int, backends: int) -> None:
        """Wait until the main process and each worker see all backends."""

        async def ready() -> bool:
            if self.process.returncode is not None:
                raise AssertionError(f"slotgate ended with {self.process.returncode}:\n{self.log.read_text()}")
            try:
                status = await self.status()
            except AdminError:
                return False
            own = sum(backend.health == "ready" for backend in status.backends)
            serving = sum(worker.state == "serving" for worker in status.workers)
            return own == backends and serving == (workers if workers > 1 else 0)

        await until(ready, "all workers and backends are ready", 60)
        for worker in await self.workers():
            with AdminClient(self.state_dir / f"worker-{worker.number}.{worker.pid}.sock") as admin:
                await until(partial(self._sees, admin, backends), f"worker {worker.number} sees all", 30)

    async def _sees(self, admin: AdminClient, backends: int) -> bool:
        status = await self.ask(admin.status)
        return sum(backend.health == "ready" for backend in status.backends) == backends

    async def address(self) -> tuple[str, int]:
        host, _, port = (await self.status()).listen.rpartition(":")
        return host, int(port)

    async def restarted(self) -> WorkersAnswer:
        """A whole rolling restart."""
        await self.ask(self.admin.restart_workers)

        async def done() -> bool:
            return not (await self.ask(self.admin.workers)).restarting

        await until(done, "all workers are replaced", 90)
        return await self.ask(self.admin.workers)

    def lines(self) -> list[dict[str, Any]]:
        """Its log."""
        return [orjson.loads(line) for line in self.log.read_bytes().splitlines() if line.startswith(b"{")]


@contextlib.asynccontextmanager
async def workers_rig(
    tmp_path: Path,
    engines: Sequence[EmulatedEngine],
    *,
    workers: int = 2,
    slots: int = 64,
    more: str = "",
    listen: str = "127.0.0.1:0",
    activated: socket.socket | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[WorkersRig]:
    """Start engines, and slotgate in front of them.

    Args:
        tmp_path: where everything goes.
        engines: the backends.
        workers: how many processes serve clients.
        slots: of each engine.
        more: lines of the configuration.
        listen: address for clients.
        activated: a listening socket that slotgate inherits as from systemd.
        variables: of its environment.
    """
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        state_dir, log, file = tmp_path / "state", tmp_path / "slotgate.log", tmp_path / "config.toml"
        backends = "".join(
            f'[[backends]]\nname = "gpu{number}"\nurl = "{engine.url}"\nslots = {slots}\nrunning_limit = {slots}\n'
            for number, engine in enumerate(engines)
        )
        head = f'listen = "{listen}"\nstate_dir = "{state_dir}"\nadmin_socket = "{state_dir}/admin.sock"\n'
        file.write_text(f"{head}workers = {workers}\n{backends}{more}")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLOTGATE_", "XDG_"))}
        with log.open("ab") as output:
            started = await asyncio.create_subprocess_exec(
                *(sys.executable, *(["-c", AS_SYSTEMD] if activated is not None else ["-m", "proxy"])),
                *("serve", f"--config={file}"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environ | dict(variables) | ({} if activated is None else {"SOCKET": str(activated.fileno())}),
                pass_fds=() if activated is None else (activated.fileno(),),
            )
        rig = WorkersRig(started, state_dir, log)
        stack.callback(rig.admin.close)
        stack.push_async_callback(_end, started)
        await rig.wait_ready(workers, len(engines))
        yield rig


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(30):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise


class Stream:
    """One streamed answer, read by a client with a connection of its own."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.complete = False
        self.problem = ""

    async def run(self, host: str, port: int, tokens: int) -> None:
        """Ask and read to the end; whatever goes wrong is kept in `problem`."""
        last = ""
        try:
            async with (
                httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60) as client,
                client.stream("POST", "/api/generate", json=STREAM | {"options": {"num_predict": tokens}}) as answer,
            ):
                if answer.status_code != 200:
                    self.problem = f"status {answer.status_code}: {(await answer.aread())[:200]!r}"
                    return
                async for line in answer.aiter_lines():
                    self.begun.set()
                    last = line
                self.complete = '"done":true' in last
                if not self.complete:
                    self.problem = f"cut after {last!r}"
        except httpx.HTTPError as error:
            self.problem = f"{error!r} after {last!r}"
        finally:
            self.begun.set()
