"""A slotgate to try things on: its directory, its address, and what is said when it does not come up."""

import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from proxy import trial
from proxy.trial import TrialError


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_directory_is_removed_whatever_happens(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), trial.state_dir("test") as directory:
        (directory / "file").write_text("a")
        assert directory.parent == tmp_path
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_trials_that_run_are_found() -> None:
    assert trial.running_sockets() == []
    with trial.state_dir("up") as running, trial.state_dir("demo") as starting, trial.state_dir("up") as ended:
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as gone:
            listener.bind(str(running / trial.ADMIN_SOCKET))
            listener.listen()
            gone.bind(str(ended / trial.ADMIN_SOCKET))  # nobody listens: its process was killed
            (starting / "config.toml").touch()
            assert trial.running_sockets() == [running / trial.ADMIN_SOCKET]


def test_a_full_disk_is_told_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(2**30, 2**30, 2**20))
    with pytest.raises(TrialError, match="has 1 MiB free; 256 MiB are wanted"), trial.state_dir("test"):
        raise AssertionError("not reached")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(TrialError, match="cannot make a directory"), trial.state_dir("test"):
        raise AssertionError("not reached")


def test_an_address_is_tried() -> None:
    for listen in ("127.0.0.1:0", ":0", "unix:/run/a.sock"):
        trial.check_listen(listen, "advice")
    with pytest.raises(TrialError, match=r"--listen=nonsense: write HOST:PORT"):
        trial.check_listen("nonsense", "advice")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(TrialError, match="Take another port: like this"):
            trial.check_listen(f"127.0.0.1:{taken.getsockname()[1]}", "like this")


@pytest.mark.parametrize("value", ["plain", 'with "quotes" and \\', "ümläut\n", Path("/a b/c")])
def test_what_is_quoted_is_read_as_it_was(value: object) -> None:
    assert tomllib.loads(f"a = {trial.quoted(value)}") == {"a": str(value)}


def test_a_proxy_that_ends_shows_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "slotgate.log").write_text("".join(f"line {number}\n" for number in range(100)))
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(TrialError) as caught:
        trial.wait_until_ready(process, tmp_path, 1, lambda _what: None)
    assert str(caught.value).startswith("slotgate ended with status 3 while starting:\nline 85\n")
    trial.stop(process)


def test_a_configuration_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    with (
        pytest.raises(TrialError, match=r"ended with status 2 while starting:[^$]*nonsense"),
        trial.serve(tmp_path, "127.0.0.1:0", "nonsense = 1\n") as process,
    ):
        trial.wait_until_ready(process, tmp_path, 1, told.append)
    assert process.returncode == 2
    assert told == []
