"""The protocol, against a real datagram socket and a real child process."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.systemd import Notifier, inherited_sockets
from proxy.tasks import Tasks
from tests.wait import until


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The other end: what systemd would read from."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(5)
        yield listening


@pytest.fixture
def environ(systemd: socket.socket) -> dict[str, str]:
    return {"NOTIFY_SOCKET": systemd.getsockname()}


def test_states(systemd: socket.socket, environ: dict[str, str]) -> None:
    notifier = Notifier(environ)
    assert environ == {}  # engines started later must not speak for us
    before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert notifier.ready("4/4 backends\nready")
    assert systemd.recv(4096) == b"READY=1\nSTATUS=4/4 backends ready"
    notifier.status("11 streams")
    assert systemd.recv(4096) == b"STATUS=11 streams"
    notifier.reloading()
    reloading = re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=(\d+)", systemd.recv(4096))
    assert reloading
    assert before_us <= int(reloading[1]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.extend_timeout(1.5)
    assert systemd.recv(4096) == b"EXTEND_TIMEOUT_USEC=1500000"
    notifier.stopping("draining")
    assert systemd.recv(4096) == b"STOPPING=1\nSTATUS=draining"
    notifier.close()
    assert not notifier.ready()


def test_abstract_sockets() -> None:
    name = f"slotgate-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(5)
        assert Notifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert listening.recv(64) == b"READY=1"


def test_without_systemd_nothing_happens(tmp_path: Path) -> None:
    assert not Notifier({}).ready()
    assert Notifier({"WATCHDOG_USEC": "1000"}).watchdog_interval_s is None
    assert not Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()


def test_a_full_socket_does_not_block(systemd: socket.socket, environ: dict[str, str]) -> None:
    notifier = Notifier(environ)
    sent = 0
    while notifier.status("x" * 100):
        sent += 1
    assert sent > 0


@pytest.mark.parametrize(
    ("variables", "interval_s"),
    [
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": str(os.getpid())}, 10.0),
        ({"WATCHDOG_USEC": "20000000"}, 10.0),
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_watchdog_interval(environ: dict[str, str], variables: dict[str, str], interval_s: float | None) -> None:
    assert Notifier({**environ, **variables}).watchdog_interval_s == interval_s


async def test_watchdog_pings_from_the_loop(systemd: socket.socket, environ: dict[str, str]) -> None:
    notifier = Notifier({**environ, "WATCHDOG_USEC": "20000"})
    tasks = Tasks()
    task = tasks.start(notifier.keep_watchdog(), "watchdog")
    systemd.setblocking(False)
    received: list[bytes] = []

    def two_pings() -> bool:
        try:
            received.append(systemd.recv(64))
        except BlockingIOError:
            return False
        return len(received) >= 2

    await until(two_pings, "two watchdog pings")
    assert set(received) == {b"WATCHDOG=1"}
    assert not task.done()
    await tasks.close()


async def test_watchdog_returns_where_nobody_watches(environ: dict[str, str]) -> None:
    await asyncio.wait_for(Notifier(environ).keep_watchdog(), 5)


INHERITING = """
import os, sys
os.environ["LISTEN_PID"] = str(os.getpid()) if sys.argv[1] == "own" else "1"
from proxy.systemd import inherited_sockets
for found in inherited_sockets():
    print(found.getsockname()[1], found.get_inheritable(), found.getblocking())
print([name for name in os.environ if name.startswith("LISTEN_")])
"""


@pytest.mark.parametrize("whose", ["own", "other"])
def test_inherited_sockets(whose: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        fd = listening.fileno()

        def as_systemd_does() -> None:
            os.dup2(fd, 3)

        result = subprocess.run(
            [sys.executable, "-c", INHERITING, whose],
            env={**os.environ, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"},
            preexec_fn=as_systemd_does,
            close_fds=False,
            capture_output=True,
            text=True,
            check=True,
        )
        expected = f"{listening.getsockname()[1]} False False\n[]\n" if whose == "own" else "[]\n"
        assert result.stdout == expected


def test_no_inherited_sockets() -> None:
    assert inherited_sockets({}) == []
    assert inherited_sockets({"LISTEN_FDS": "1", "LISTEN_PID": "1"}) == []
