"""Which box this is."""

import os
import socket
from pathlib import Path

import pytest

from proxy.backends import boxes
from proxy.backends.boxes import this_box


def test_every_process_of_a_box_gives_it_the_same_name() -> None:
    box = this_box()
    assert box == this_box()
    assert (box.name, box.id.rpartition("-")[0]) == (socket.gethostname(), socket.gethostname())
    assert this_box("attic").name == "attic"
    assert this_box("attic").id.rpartition("-")[2] == box.id.rpartition("-")[2]


def test_machines_and_networks_of_one_name_are_different_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {this_box("box").id}
    monkeypatch.setattr(boxes, "_network", lambda: "net:[1]")
    found.add(this_box("box").id)
    monkeypatch.setattr(boxes, "_read", lambda _path: "another machine")
    found.add(this_box("box").id)
    assert len(found) == 3


def test_a_machine_that_tells_nothing_of_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read = boxes._read
    monkeypatch.setattr(boxes, "_read", lambda _path: read(str(tmp_path / "none")))
    monkeypatch.setattr(os, "readlink", lambda _path: (_ for _ in ()).throw(PermissionError()))
    assert this_box("box") == this_box("box")
