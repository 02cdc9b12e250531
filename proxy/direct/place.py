"""Where a proxy listens for the others of its box: a unix socket in the state directory that only this user may use."""

import contextlib
import os
import socket
import time
from pathlib import Path

from proxy.listener import unix_socket
from proxy.store.valkey_files import make_directories, short_enough

DIRECTORY = "direct"
LEFT_BEHIND_S = 60.0
"""A socket that was made so long ago and answers nobody was left by a proxy that was killed."""


def listening(state_dir: Path, owner: str) -> tuple[socket.socket, Path]:
    """A listening socket of this proxy, and its path; those that killed proxies left are removed.

    Raises:
        StoreStartError: the directory cannot be used, or every path is too long for a unix socket.
        ListenError: the socket cannot be made.
    """
    path = short_enough(state_dir / DIRECTORY / f"{owner.rpartition('.')[2]}.sock")
    make_directories(path.parent)
    for other in path.parent.glob("*.sock"):
        _remove_left(other)
    return unix_socket(path, 0o600), path


def _remove_left(path: Path) -> None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        if time.time() - path.stat().st_mtime < LEFT_BEHIND_S:
            return  # it may be about to listen
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
