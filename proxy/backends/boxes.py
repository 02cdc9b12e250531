"""Which box this is: what a loopback address or a socket's path belongs to."""

import contextlib
import hashlib
import os
import socket
from pathlib import Path

import msgspec


class Box(msgspec.Struct, frozen=True):
    """One place with loopback addresses of its own: a machine, or a container with a network of its own."""

    name: str
    """For people."""
    id: str
    """Unlike any other's: the name, and what tells it from another box of that name."""


def this_box(name: str | None = None) -> Box:
    """The box that this process runs on; `name` as configured, otherwise its host name.

    Containers may share a host name, and even the machine's id and boot; their network name spaces differ.
    """
    shown = name or socket.gethostname()
    machine = _read("/etc/machine-id") or _read("/proc/sys/kernel/random/boot_id")
    return Box(shown, f"{shown}-{hashlib.sha256(f'{machine} {_network()}'.encode()).hexdigest()[:6]}")


def _read(path: str) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path(path).read_text().strip()
    return ""


def _network() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/net")  # noqa: PTH115 - it is no path
    return ""
