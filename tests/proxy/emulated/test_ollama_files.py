"""Memory and a directory, alike."""

from pathlib import Path

import pytest

from proxy.emulated.ollama_files import DirectoryFiles, Files, MemoryFiles


@pytest.fixture(params=["memory", "directory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return MemoryFiles() if request.param == "memory" else DirectoryFiles(tmp_path / "models")


def test_what_is_written_can_be_read_listed_moved_and_removed(files: Files) -> None:
    assert (files.read("a/b"), files.size("a/b"), files.stamp("a/b"), files.names("a")) == (None, None, None, [])
    files.write("a/b", b"one")
    files.write("a/c/d", b"two")
    assert (files.read("a/b"), files.size("a/b")) == (b"one", 3)
    assert sorted(files.names("a")) == ["a/b", "a/c/d"]
    assert files.rename("a/b", "a/e")
    assert not files.rename("a/b", "a/e")
    assert files.read("a/e") == b"one"
    files.remove("a/e")
    files.remove("a/e")
    assert files.names("a") == ["a/c/d"]


def test_large_files_have_a_size_and_no_content(files: Files) -> None:
    files.stretch("blobs/x", 10**12)
    assert files.size("blobs/x") == 10**12


def test_a_change_changes_the_stamp(files: Files) -> None:
    files.write("a", b"one")
    before = files.stamp("a")
    files.write("a", b"two")
    assert files.stamp("a") != before


def test_a_directory_is_shared_and_unfinished_writes_are_not_seen(tmp_path: Path) -> None:
    one, other = DirectoryFiles(tmp_path), DirectoryFiles(tmp_path)
    one.write("manifests/a", b"x")
    (tmp_path / "manifests" / ".b.77.1").write_bytes(b"half")
    assert other.names("manifests") == ["manifests/a"]
