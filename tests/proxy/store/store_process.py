"""A real Valkey or Redis as a child process on a unix socket, for tests that stop, stall and restart it."""

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from proxy.store.valkey_files import binary
from tests.wait import until_sync

REDIS = shutil.which("redis-server")


def program(name: str) -> str:
    """The path of `valkey` (bundled) or `redis` (of the system)."""
    if name == "valkey":
        return str(binary())
    assert REDIS is not None
    return REDIS


class StoreProcess:
    """One store process; `start` and `stop` may be repeated and keep the socket path."""

    def __init__(self, name: str, directory: Path, *options: str) -> None:
        self.name = name
        self.path = directory / "s.sock"
        self.url = f"unix://{self.path}"
        self._directory = directory
        self._options = options
        self.child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            program(self.name),
            *("--port", "0", "--unixsocket", str(self.path), "--save", "", "--appendonly", "no"),
            *("--dir", str(self._directory), "--logfile", str(self._directory / "log"), *self._options),
        ]
        self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        until_sync(self._listens, f"{self.name} listens")

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.path))
            except OSError:
                return False
        return True

    def stop(self) -> None:
        """Kill it; what it held is gone."""
        if self.child is not None:
            self.child.send_signal(signal.SIGCONT)
            self.child.kill()
            self.child.wait()
            self.child = None
        self.path.unlink(missing_ok=True)

    def stall(self) -> None:
        """It stays connected and answers nothing."""
        assert self.child is not None
        os.kill(self.child.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.child is not None
        os.kill(self.child.pid, signal.SIGCONT)
