"""Places in the state directory."""

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.backends.orphans import ProcessRecord
from proxy.backends.statedir import SOCKET_PATH_BYTES, PidFile, StateDir, StateDirError, engine_key, free_port


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDir]:
    made = StateDir(tmp_path / "state")
    made.open()
    yield made
    made.close()


def test_one_slotgate_per_state_directory(state: StateDir) -> None:
    second = StateDir(state.path)
    with pytest.raises(StateDirError, match="another slotgate uses the state directory"):
        second.open()
    state.close()
    second.open()
    second.close()


def test_its_id_survives(state: StateDir) -> None:
    state.close()
    again = StateDir(state.path)
    again.open()
    assert again.id == state.id
    assert again.marker("one") == f"{state.id}/one"
    again.close()


def test_an_unusable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDirError, match=r"cannot use the state directory .*/file"):
        StateDir(tmp_path / "file").open()


def test_directories_that_were_removed_are_made_again(state: StateDir) -> None:
    (state.path / "keys").rmdir()
    (state.path / "run" / "x.pid").write_text("kept")
    state.make_directories()
    assert stat.S_IMODE((state.path / "keys").stat().st_mode) == 0o700
    assert (state.path / "run" / "x.pid").read_text() == "kept"


def test_keys_are_new_each_time_and_private(state: StateDir) -> None:
    path, key = state.write_key("one")
    assert path.read_text() == f"{key}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    _, second = state.write_key("one")
    assert second != key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_engine_keeps_its_key_where_no_new_one_can_be_written(state: StateDir) -> None:
    """A disk that is full: here the new file's place is taken."""
    path, key = state.write_key("one")
    (state.path / "keys" / "one.key.new").mkdir()
    assert state.write_key("one") == (path, key)
    path.chmod(0o644)  # others may have read it
    with pytest.raises(StateDirError, match=r"one\.key\.new: Is a directory; free space there or correct its owner"):
        state.write_key("one")


def test_a_key_that_was_never_written_is_explained(state: StateDir) -> None:
    (state.path / "keys").rmdir()
    with pytest.raises(StateDirError, match=r"cannot write .*one\.key\.new: No such file"):
        state.write_key("one")


def test_an_id_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "id").mkdir()
    state = StateDir(tmp_path)
    with pytest.raises(StateDirError, match=r"cannot use the state directory .*: Is a directory"):
        state.open()
    (tmp_path / "id").rmdir()
    state.open()  # and the lock was given back
    state.close()


def test_a_short_path_has_its_socket_in_the_state_directory(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    del monkeypatch
    state = StateDir(tmp_path_factory.mktemp("s"))
    state.open()
    assert state.socket_path("one") == state.path / "run" / "one.sock"
    state.close()


def test_a_long_path_has_its_socket_in_a_private_short_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "r"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    state = StateDir(tmp_path / ("long" * 30))
    state.open()
    path = state.socket_path("one")
    assert len(str(path)) <= SOCKET_PATH_BYTES
    assert path.is_relative_to(runtime)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    longest = state.socket_path("n" * 64)
    assert len(str(longest)) <= SOCKET_PATH_BYTES
    path.parent.chmod(0o777)
    with pytest.raises(StateDirError, match="must be a directory of this user with mode 0700"):
        state.socket_path("one")
    state.close()


def test_pid_files(state: StateDir) -> None:
    assert state.read_pid_file("one") == PidFile()
    content = PidFile(ProcessRecord(1, 2), ProcessRecord(3, 4), epoch=5)
    state.write_pid_file("one", content)
    found = state.pid_files()["one"]
    assert (found.keeper, found.engine, found.epoch) == (content.keeper, content.engine, 5)
    path = state.path / "run" / "one.pid"
    path.write_text(path.read_text().replace(found.boot, "an earlier boot"))
    assert state.read_pid_file("one") == PidFile(epoch=5)  # its numbers may be anybody's by now
    (state.path / "run" / "one.pid").write_text("half a {")
    assert state.read_pid_file("one") == PidFile()


def test_taken_ports_are_skipped(state: StateDir) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        first = free_port(taken)
        assert first > taken
        assert state.pick_port("one", taken) == first
        assert state.pick_port("two", taken) > first
        assert state.pick_port("one", taken) == first
    assert free_port(taken, frozenset({taken})) > taken
    with pytest.raises(StateDirError, match="no free port"):
        free_port(65535, frozenset({65535}))


def test_other_processes_of_this_user_find_the_key_and_no_other_file(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.open()
    path, key = state.write_key("one")
    assert (engine_key(str(state.key_path("one"))), path) == (key, state.key_path("one"))
    copy = tmp_path / "one.key"
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o600)
    assert engine_key(str(copy)) == ""
    path.chmod(0o644)
    assert engine_key(str(path)) == ""
    assert engine_key(str(state.key_path("two"))) == ""
    path.chmod(0o600)
    path.write_text("a file of another kind")
    assert engine_key(str(path)) == ""
    state.close()
