"""The child's program by itself, as a process between two sockets."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.emulated import ollama_child
from tests.wait import until_sync


class Rig:
    """A child, its parent's end of the channel, and its port."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.program = directory / "llama-server"
        self.program.symlink_to(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(10)
        with socket.create_server(("127.0.0.1", 0)) as listening, theirs:
            self.address = listening.getsockname()
            self.process = subprocess.Popen(
                [str(self.program), "-I", "-S", ollama_child.__file__, "--model", "/m", "--port", "1"],
                env=os.environ | {"EMULATED_CHILD": f"{listening.fileno()},{theirs.fileno()}"},
                pass_fds=(listening.fileno(), theirs.fileno()),
            )

    def ask(self, path: str, more: str = "") -> socket.socket:
        client = socket.create_connection(self.address, timeout=10)
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode())
        return client

    @property
    def command_line(self) -> list[str]:
        return Path(f"/proc/{self.process.pid}/cmdline").read_text().split("\0")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "own")
    yield made
    made.channel.close()
    made.process.kill()
    made.process.wait(10)


def test_it_shows_itself_as_llama_server(rig: Rig) -> None:
    until_sync(lambda: rig.command_line[1:2] == ["--model"], "it has taken its own arguments out")
    name, *rest = rig.command_line
    assert Path(name) == rig.program
    assert rest == ["--model", "/m", "--port", "1", ""]
    until_sync(lambda: not rig.program.parent.exists(), "the link that started it is gone")


def test_it_asks_its_parent_and_keeps_connections(rig: Rig) -> None:
    client = rig.ask("/slots?x=1")
    assert rig.channel.recv(100) == b"1 GET /slots?x=1 1\n"
    rig.channel.sendall(b"1 5\nhello")
    assert client.recv(100) == b"hello"
    client.sendall(b"GET /again HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert rig.channel.recv(100) == b"2 GET /again 0\n"
    rig.channel.sendall(b"2 3\nbye")
    assert client.recv(100) == b"bye"
    assert client.recv(100) == b""


def test_without_its_parent_it_says_its_last_words(rig: Rig) -> None:
    rig.channel.sendall(b"*/slots 4\nidle")
    waiting = rig.ask("/slots")
    assert rig.channel.recv(100)
    rig.channel.close()
    assert waiting.recv(100) == b"idle"
    assert rig.ask("/slots?a=b").recv(100) == b"idle"
    assert b"404 Not Found" in rig.ask("/other").recv(1000)
    assert rig.process.poll() is None
