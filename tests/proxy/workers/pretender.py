"""A program in place of a worker's, which does what a test wants: with it the main process's side is tested alone."""

import sys
from pathlib import Path

import msgspec
import pytest

import proxy.workers.worker

PROGRAM = """
import json, os, signal, socket, sys, time
arguments = dict(each.lstrip("-").split("=") for each in sys.argv[2:])
channel = socket.socket(fileno=int(arguments["channel"]))
lines = channel.makefile("r")
orders = json.loads(lines.readline())
here = os.path.dirname(orders["state_dir"])
number = orders["number"]

def note(what):
    with open(os.path.join(here, "notes"), "a") as file:
        file.write(json.dumps({"number": number, "pid": os.getpid(), **what}) + "\\n")

def tell(what):
    channel.sendall(json.dumps(what).encode() + b"\\n")

def manner():
    with open(os.path.join(here, f"manner-{number}")) as file:
        return file.read()

note(orders)
if manner() == "dies":
    sys.exit(3)
if manner() == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if manner() != "never-ready":
    tell({"type": "ready", "warm": True})
    tell({"type": "alive", "running": number, "connections": 2, "served": 7})
for line in lines:
    note(json.loads(line))
    if json.loads(line)["type"] == "retire" and manner() != "deaf":
        break
"""


class Pretender:
    """Where the program is, and what it noted."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "proxy").mkdir()
        (home / "proxy" / "__init__.py").touch()
        (home / "proxy" / "__main__.py").write_text(PROGRAM)

    def manner(self, number: int, manner: str) -> None:
        """How workers of that number behave from now on: well, dies, never-ready or deaf."""
        (self.home / f"manner-{number}").write_text(manner)

    def notes(self, kind: str) -> list[dict[str, object]]:
        """What the programs heard, in order."""
        path = self.home / "notes"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [note for note in map(msgspec.json.decode, lines) if note["type"] == kind]


@pytest.fixture
def pretender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretender:
    monkeypatch.setattr(proxy.workers.worker, "ROOT", tmp_path)
    assert sys.executable
    made = Pretender(tmp_path)
    for number in (1, 2, 3):
        made.manner(number, "well")
    return made
