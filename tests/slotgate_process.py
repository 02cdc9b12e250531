"""slotgate as users run it: its own process, with real engines of its own or in front of given ones."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from proxy.admin_api import BackendStatus, StatusAnswer
from proxy.admin_client import AdminClient, AdminError
from tests.real_engine import MODEL_NAME, smollm2_path
from tests.wait import until_sync


class SlotgateProcess:
    """A running `python -m proxy serve`."""

    def __init__(self, process: "subprocess.Popen[bytes]", state_dir: Path, log: Path) -> None:
        self.process = process
        self.state_dir = state_dir
        self.log = log
        self.admin = AdminClient(state_dir / "admin.sock")

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"http://{self.status().listen}"

    def status(self) -> StatusAnswer:
        """What `slotgate status` shows."""
        return self.admin.status()

    def backends(self) -> list[BackendStatus]:
        """The backends; none while the proxy does not answer."""
        with contextlib.suppress(AdminError):
            return self.status().backends
        return []

    def wait_ready(self, count: int, timeout_s: float = 60) -> None:
        """Wait until so many backends are ready."""

        def ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"slotgate ended with {self.process.returncode}:\n{self.log.read_text()}")
            return sum(backend.health == "ready" for backend in self.backends()) == count

        until_sync(ready, f"{count} backends are ready", timeout_s)

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def real_config(
    state_dir: Path, *, backends: int = 2, slots: int = 4, running_limit: int = 2, listen: str = "", flags: str = ""
) -> str:
    """A configuration with real llama-servers on the CPU; `flags` are further ones of theirs, with blanks between."""
    return (
        f'listen = "{listen or "127.0.0.1:0"}"\nstate_dir = "{state_dir}"\nadmin_socket = "{state_dir}/admin.sock"\n'
        f'[[backends]]\nname = "cpu"\nengine = "embedded"\ngpus = "none"\ncount = {backends}\n'
        f'model = "{smollm2_path()}"\nmodel_name = "{MODEL_NAME}"\n'
        f"slots = {slots}\nrunning_limit = {running_limit}\ncontext_tokens = 2048\n"
        f"flags = {flags.split()}\n"
        "[backends.restart]\nbackoff_s = 0.1\n"
    )


@contextlib.contextmanager
def slotgate(directory: Path, config: str, *arguments: str, inside: Sequence[str] = ()) -> Iterator[SlotgateProcess]:
    """Run `slotgate serve`; the configuration's state directory is `directory / "state"`.

    `inside` stands before the command, as `Boxes.inside` gives it.
    """
    state_dir = directory / "state"
    file = directory / "config.toml"
    file.write_text(config)
    log = directory / "slotgate.log"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLOTGATE_", "XDG_"))}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*inside, sys.executable, "-m", "proxy", "serve", f"--config={file}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
        )
    running = SlotgateProcess(process, state_dir, log)
    try:
        yield running
    finally:
        running.admin.close()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
