"""The process table: the real one, and made ones for what cannot be had at will."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.backends.processes import Denied, ProcessTable, user_name

TABLE = ProcessTable()
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def line(address: str, inode: int, state: str = "0A", user: int = 998) -> str:
    return f"   0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000   {user}        0 {inode} 1\n"


class Made:
    """A process table in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "net").mkdir(parents=True)
        self.net()

    def net(self, *, tcp: str = "", tcp6: str | None = "") -> None:
        (self.root / "net/tcp").write_text(HEAD + tcp)
        if tcp6 is not None:
            (self.root / "net/tcp6").write_text(HEAD + tcp6)

    def process(self, pid: int, parent: int = 1, name: str = "x", state: str = "S", started: int = 7) -> Path:
        directory = self.root / str(pid)
        directory.mkdir()
        (directory / "stat").write_text(f"{pid} ({name}) {state} {parent} {'0 ' * 17}{started} 0 0\n")
        return directory


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "proc")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process with one below it."""
    below = "subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0)"
    code = f"import subprocess, sys; print({below}.pid, flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--x"],
        env={"PATH": "/bin", "QUOTED": "a=b"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    yield process
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait()
    process.stdout.close()


def test_a_real_process(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    below = int(child.stdout.readline())
    process = TABLE.process(child.pid)
    assert process is not None
    assert (process.pid, process.parent) == (child.pid, os.getpid())
    assert [each.pid for each in TABLE.below(child.pid)] == [below]
    assert {child.pid, below} <= {each.pid for each in TABLE.below(os.getpid())}
    assert TABLE.command_line(child.pid)[-1] == "--x"
    assert TABLE.environment(child.pid)["QUOTED"] == "a=b"
    assert TABLE.network(child.pid) == TABLE.network() != ""
    assert TABLE.user(child.pid) == os.getuid()


def test_a_process_that_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert TABLE.process(process.pid) is None  # its corpse is still there
    process.wait()
    assert TABLE.process(process.pid) is None
    assert TABLE.command_line(process.pid) == ()
    assert TABLE.environment(process.pid) == {}
    assert TABLE.network(process.pid) == ""
    assert TABLE.unit(process.pid) == ""
    assert TABLE.user(process.pid) is None


def test_who_listens_on_a_real_port() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        [found] = TABLE.listeners("127.0.0.1", port)
        assert found.user == os.getuid()
        assert os.getpid() in TABLE.holders({found.inode}).pids
        assert TABLE.listeners("localhost", port) == [found]
        assert TABLE.listeners("127.0.0.2", port) == []
    assert TABLE.listeners("127.0.0.1", port) == []


@pytest.mark.parametrize(
    ("address", "tcp", "tcp6", "inodes"),
    [
        pytest.param("127.0.0.1", ["0100007F:2CAA"], [], [1], id="exactly-there"),
        pytest.param("127.0.0.1", ["00000000:2CAA"], [], [1], id="on-all-addresses"),
        pytest.param("127.0.0.1", ["0100007F:2CAA", "00000000:2CAA"], [], [1], id="the-exact-one-goes-first"),
        pytest.param("127.0.0.1", ["0100007F:2CAB"], [], [], id="another-port"),
        pytest.param("127.0.0.1", ["0500A8C0:2CAA"], [], [], id="another-address"),
        pytest.param("127.0.0.1", [], ["00000000000000000000000000000000:2CAA"], [11], id="version-6-takes-both"),
        pytest.param("127.0.0.1", [], ["0000000000000000FFFF00000100007F:2CAA"], [11], id="mapped"),
        pytest.param("::1", [], ["00000000000000000000000001000000:2CAA"], [11], id="version-6"),
        pytest.param("::1", ["00000000:2CAA"], [], [], id="version-4-takes-no-6"),
        pytest.param(
            "localhost", ["0100007F:2CAA"], ["00000000000000000000000001000000:2CAA"], [1, 11], id="localhost-is-both"
        ),
    ],
)
@pytest.mark.skipif(sys.byteorder != "little", reason="the table writes addresses in the machine's own order")
def test_which_socket_an_address_leads_to(
    made: Made, address: str, tcp: list[str], tcp6: list[str], inodes: list[int]
) -> None:
    made.net(
        tcp="".join(line(each, number) for number, each in enumerate(tcp, 1)),
        tcp6="".join(line(each, number) for number, each in enumerate(tcp6, 11)),
    )
    assert [found.inode for found in ProcessTable(made.root).listeners(address, 11434)] == inodes


def test_connections_and_odd_lines_are_no_listeners(made: Made) -> None:
    made.net(tcp=line("0100007F:2CAA", 1, state="01") + "?\n\n", tcp6=None)
    assert ProcessTable(made.root).listeners("127.0.0.1", 11434) == []


def test_no_table_at_all(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="net/tcp"):
        ProcessTable(tmp_path).listeners("127.0.0.1", 11434)


def test_processes_that_vanish_while_they_are_read(made: Made) -> None:
    made.process(10)
    made.process(11, parent=10, name="a) S 99 (b")
    made.process(12, parent=11)
    made.process(13, parent=10, state="Z")
    (made.root / "14").mkdir()  # nothing in it any more
    (made.process(15) / "stat").write_text("")
    (made.process(16) / "stat").write_text("16 (x) S nonsense")
    table = ProcessTable(made.root)
    assert [each.pid for each in table.below(10)] == [11, 12]
    assert table.holders({1}).pids == ()


def test_who_holds_a_socket_and_who_may_not_be_looked_into(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid, target in ((10, "socket:[77]"), (11, "socket:[78]"), (12, "socket:[77]")):
        directory = made.process(pid) / "fd"
        directory.mkdir()
        (directory / "3").symlink_to(target)
    read = os.listdir

    def refused(path: str) -> list[str]:
        if path.endswith("/12/fd"):
            raise PermissionError(13, "Permission denied", path)
        return read(path)

    monkeypatch.setattr(os, "listdir", refused)
    holders = ProcessTable(made.root).holders({77})
    assert (holders.pids, holders.hidden) == ((10,), (12,))


def test_what_may_not_be_read_is_told_apart(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.process(10)

    def refused(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refused)
    monkeypatch.setattr(os, "readlink", refused)
    table = ProcessTable(made.root)
    with pytest.raises(Denied):
        table.environment(10)
    with pytest.raises(Denied):
        table.network(10)
    assert table.process(10) is None
    assert table.command_line(10) == ()
    assert table.unit(10) == ""


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/ollama.service\n", "ollama.service"),
        ("0::/system.slice/system-ollama.slice/ollama@1.service", "ollama@1.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope", ""),
        ("0::/", ""),
        ("0::/x/bad name.service", ""),
    ],
)
def test_the_service_of_a_process(made: Made, cgroup: str, unit: str) -> None:
    (made.process(10) / "cgroup").write_text(cgroup)
    assert ProcessTable(made.root).unit(10) == unit


def test_users_have_names() -> None:
    assert user_name(0) == "root"
    assert user_name(2**31 - 7) == f"with id {2**31 - 7}"
