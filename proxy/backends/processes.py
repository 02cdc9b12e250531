"""Owns reading the process table of Linux: who listens on a port, what a process is, what it started.

Whatever is read may be gone a moment later: what vanishes meanwhile is left out, what may not be read is told apart
from what is not there. All of it blocks, for some milliseconds with a few hundred processes: call it in a thread.
"""

import contextlib
import ipaddress
import os
import pwd
import re
import sys
from pathlib import Path

import msgspec

_LISTENING = "0A"
"""Source: TCP_LISTEN, include/net/tcp_states.h."""
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Denied(Exception):
    """We may not read that of a process that is there."""


class Process(msgspec.Struct, frozen=True):
    """A process that cannot be confused with a later one of the same number."""

    pid: int
    parent: int
    started: int
    """Clock ticks since boot, field 22 of /proc/PID/stat."""


class Listener(msgspec.Struct, frozen=True):
    """A socket that accepts connections."""

    inode: int
    user: int
    """Numeric id of who made it."""


class Holders(msgspec.Struct, frozen=True):
    """Who has a socket open."""

    pids: tuple[int, ...]
    hidden: tuple[int, ...]
    """Processes that are there and may not be looked into: one of these may be it."""


class ProcessTable:
    """Questions to /proc."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = str(root)

    def process(self, pid: int) -> Process | None:
        """A running process; None: there is none of that number, or only its corpse."""
        try:
            # the command name in parentheses may hold anything, spaces and parentheses included
            fields = self._read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()
            return None if fields[0] in {"Z", "X"} else Process(pid, int(fields[1]), int(fields[19]))
        except (OSError, ValueError, IndexError, Denied):
            return None

    def below(self, pid: int) -> list[Process]:
        """All that a process started, and what these started, in order of their numbers."""
        processes = [process for each in self._pids() if (process := self.process(each)) is not None]
        family = {pid}
        while more := [each.pid for each in processes if each.parent in family and each.pid not in family]:
            family.update(more)
        return sorted((each for each in processes if each.pid in family and each.pid != pid), key=lambda each: each.pid)

    def command_line(self, pid: int) -> tuple[str, ...]:
        """Its arguments, the program first; empty: it is gone, or hides them."""
        with contextlib.suppress(OSError, Denied):
            said = self._read(pid, "cmdline").decode(errors="replace")
            return tuple(said.removesuffix("\0").split("\0")) if said else ()
        return ()

    def environment(self, pid: int) -> dict[str, str]:
        """The variables that it was started with; empty also where it is gone.

        Raises:
            Denied: we may not read them.
        """
        try:
            said = self._read(pid, "environ").decode(errors="replace")
        except OSError:
            return {}
        pairs = (each.partition("=") for each in said.split("\0"))
        return {name: value for name, mark, value in pairs if mark}

    def network(self, pid: int | None = None) -> str:
        """Its network name space, ours without a number: two that are equal reach each other's loopback addresses.

        Empty: it is gone.

        Raises:
            Denied: we may not read it.
        """
        try:
            return os.readlink(f"{self._root}/{'self' if pid is None else pid}/ns/net")  # noqa: PTH115 - it is no path
        except PermissionError as error:
            raise Denied from error
        except OSError:
            return ""

    def unit(self, pid: int) -> str:
        """Name of the systemd service that it belongs to; empty: none that can be told."""
        with contextlib.suppress(OSError, Denied):
            last = self._read(pid, "cgroup").decode(errors="replace").strip().rpartition("/")[2]
            return last if re.fullmatch(r"[\w@.\\:-]+\.service", last, re.ASCII) else ""
        return ""

    def listeners(self, address: str, port: int) -> list[Listener]:
        """Sockets of our network name space that get connections to a loopback address, or to `localhost`.

        Raises:
            OSError: there is no such table: this is no Linux.
        """
        wanted = ["127.0.0.1", "::1"] if address == "localhost" else [address]
        sockets = self._sockets("tcp", port) + (
            self._sockets("tcp6", port) if Path(f"{self._root}/net/tcp6").exists() else []
        )
        found: dict[int, Listener] = {}
        for each in map(ipaddress.ip_address, wanted):
            exact = [listener for bound, listener in sockets if bound == each]
            # the kernel prefers the exact address; [::] takes connections to IPv4 addresses too
            for listener in exact or [listener for bound, listener in sockets if _takes_all(bound, each)]:
                found[listener.inode] = listener
        return list(found.values())

    def holders(self, inodes: set[int]) -> Holders:
        """Which processes have one of these sockets open."""
        links = {f"socket:[{inode}]" for inode in inodes}
        pids, hidden = [], []
        for pid in self._pids():
            try:
                if self._has_open(pid, links):
                    pids.append(pid)
            except PermissionError:
                hidden.append(pid)
            except OSError:
                continue  # gone meanwhile
        return Holders(tuple(pids), tuple(hidden))

    def user(self, pid: int) -> int | None:
        """Numeric id of whose process it is; None: it is gone."""
        with contextlib.suppress(OSError):
            return Path(f"{self._root}/{pid}").stat().st_uid
        return None

    def _pids(self) -> list[int]:
        return [int(entry) for entry in os.listdir(self._root) if entry.isdigit()]  # noqa: PTH208 - a long loop

    def _has_open(self, pid: int, links: set[str]) -> bool:
        directory = f"{self._root}/{pid}/fd"
        for entry in os.listdir(directory):  # noqa: PTH208 - a long loop
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"{directory}/{entry}") in links:  # noqa: PTH115 - it is no path
                    return True
        return False

    def _read(self, pid: int, name: str) -> bytes:
        try:
            with open(f"{self._root}/{pid}/{name}", "rb") as file:  # noqa: PTH123 - a long loop
                return file.read()
        except PermissionError as error:
            raise Denied from error

    def _sockets(self, family: str, port: int) -> list[tuple[_Address, Listener]]:
        found = []
        for line in Path(f"{self._root}/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            with contextlib.suppress(ValueError, IndexError):
                host, _, number = fields[1].partition(":")
                if fields[3] == _LISTENING and int(number, 16) == port:
                    found.append((_address(host), Listener(inode=int(fields[9]), user=int(fields[7]))))
        return found


def user_name(user: int) -> str:
    """A user for people."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"with id {user}"


def _address(text: str) -> _Address:
    """An address as /proc/net/tcp writes it: 32-bit words in the machine's own order, in hex."""
    data = bytes.fromhex(text)
    if sys.byteorder == "little":
        data = b"".join(data[start : start + 4][::-1] for start in range(0, len(data), 4))
    address = ipaddress.ip_address(data)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _takes_all(bound: _Address, wanted: _Address) -> bool:
    return bound.is_unspecified and (bound.version == wanted.version or bound.version == 6)
