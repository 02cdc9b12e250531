"""Where a proxy listens for others of its box."""

import os
import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from proxy.direct.place import LEFT_BEHIND_S, listening
from proxy.store import StoreStartError


def test_only_this_user_may_use_it() -> None:
    with TemporaryDirectory(prefix="sg-") as name:
        opened, path = listening(Path(name), "box.0123abcd")
        with opened, socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        assert path == Path(name) / "direct" / "0123abcd.sock"
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_long_path_is_replaced_by_a_short_one(tmp_path: Path) -> None:
    opened, path = listening(tmp_path / ("long" * 30), "box.0123abcd")
    opened.close()
    path.unlink()
    assert path.parent.name.startswith(f"slotgate-{os.getuid()}-")
    assert len(os.fsencode(path)) < 108
    path.parent.rmdir()


def test_old_sockets_that_nobody_listens_at_are_removed() -> None:
    with TemporaryDirectory(prefix="sg-") as name:
        kept = [listening(Path(name), f"box.{each}") for each in ("living", "young", "dead")]
        for opened, path in kept[1:]:
            opened.close()
            assert path.exists()
        for _, path in (kept[0], kept[2]):
            os.utime(path, times=(path.stat().st_atime, path.stat().st_mtime - LEFT_BEHIND_S - 1.0))
        opened, _ = listening(Path(name), "box.new")
        opened.close()
        kept[0][0].close()
        assert [path.exists() for _, path in kept] == [True, True, False]


def test_a_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "direct").write_text("no directory")
    with pytest.raises(StoreStartError):
        listening(tmp_path, "box.a")
