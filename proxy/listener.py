"""Opens the sockets that clients connect to. Owns addresses only; what is answered there is `server`'s business."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

from proxy.listen_address import parse_listen

BACKLOG = 4096
"""Connections that may wait to be accepted; each socket's, and at most the kernel's net.core.somaxconn."""


class ListenError(Exception):
    """The address cannot be listened on; the message says why and what to do."""


def open_sockets(listen: str, inherited: list[socket.socket]) -> list[socket.socket]:
    """Listening sockets for an address of the configuration; sockets that systemd opened take its place.

    Raises:
        ListenError: it is taken, not this machine's, or not allowed.
    """
    return open_groups(listen, inherited, 1)[0]


def open_groups(listen: str, inherited: list[socket.socket], count: int) -> list[list[socket.socket]]:
    """Listening sockets for so many processes: a group for each, among which the kernel spreads TCP connections.

    Inherited sockets and a unix socket are one group that all processes share.

    Raises:
        ListenError: the address is taken, not this machine's, or not allowed.
    """
    if inherited:
        for each in inherited:
            each.setblocking(False)
        return [inherited]
    address = parse_listen(listen)
    if address.unix_path is not None:
        return [[unix_socket(address.unix_path)]]
    groups: list[list[socket.socket]] = [[] for _ in range(count)]
    try:
        found = socket.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in dict.fromkeys(found):
            if family in (socket.AF_INET, socket.AF_INET6):
                for group, opened in zip(groups, _tcp_sockets(family, kind, protocol, place, count), strict=True):
                    group.append(opened)
    except OSError as error:
        for group in groups:
            close_all(group)
        raise ListenError(_explain(listen, error)) from error
    return groups


def _tcp_sockets(family: int, kind: int, protocol: int, place: object, count: int) -> list[socket.socket]:
    if count == 1:
        return [_tcp_socket(family, kind, protocol, place)]
    # Sockets that share a port would share it with another program of the same user that does likewise, say a second
    # slotgate by mistake: so it is taken once without sharing, which fails where anybody listens.
    with _bound(family, kind, protocol, place, shared=False) as probe:
        place = probe.getsockname()
    opened: list[socket.socket] = []
    try:
        while len(opened) < count:
            opened += [_tcp_socket(family, kind, protocol, place, shared=True)]
    except OSError:
        close_all(opened)
        raise
    return opened


def _tcp_socket(family: int, kind: int, protocol: int, place: object, *, shared: bool = False) -> socket.socket:
    opened = _bound(family, kind, protocol, place, shared=shared)
    try:
        opened.listen(BACKLOG)
    except OSError:
        opened.close()
        raise
    return opened


def _bound(family: int, kind: int, protocol: int, place: object, *, shared: bool) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(place)  # type: ignore[arg-type]  # as getaddrinfo made it
    except OSError:
        opened.close()
        raise
    return opened


def close_all(opened: Iterable[socket.socket], *, remove: bool = False) -> None:
    """Close sockets; `remove`: the paths of unix sockets too, which is for who made them."""
    for each in opened:
        if remove and each.family == socket.AF_UNIX:
            with contextlib.suppress(OSError):
                Path(each.getsockname()).unlink(missing_ok=True)
        each.close()


def unix_socket(path: Path, mode: int = 0o660) -> socket.socket:
    """A listening unix socket; one that a killed process left is replaced, anything else at the path is not touched.

    Raises:
        ListenError: somebody listens there, something else is there, or it is not allowed.
    """
    opened = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            if _answers(path):
                raise OSError(errno.EADDRINUSE, "another process listens there")
            path.unlink()
        elif path.exists():
            raise OSError(errno.EEXIST, "there is a file or directory that is no socket")
        opened.setblocking(False)
        before = os.umask(0o777 & ~mode)
        try:
            opened.bind(str(path))
        finally:
            os.umask(before)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise ListenError(_explain(f"unix:{path}", error)) from error
    return opened


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _explain(listen: str, error: OSError) -> str:
    advice = {
        errno.EADDRINUSE: "another program uses it (an Ollama or another slotgate?); stop that one, or set another "
        "address with --listen or listen = ...",
        errno.EEXIST: "remove it, or set another path",
        errno.EACCES: "ports below 1024 and foreign directories need more rights; take another address",
        errno.EADDRNOTAVAIL: "this machine has no such address; `ip address` lists those it has",
    }.get(error.errno or 0, "set another address with --listen or listen = ...")
    return f"cannot listen on {listen}: {error.strerror or error}. How to fix: {advice}"


def shown(opened: Sequence[socket.socket]) -> str:
    """The address that is really bound, as a client writes it."""
    first = opened[0]
    name = first.getsockname()
    if first.family == socket.AF_UNIX:
        return f"unix:{name}"
    host, port = name[0], name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(opened: socket.socket) -> bool:
    """Whether only programs on this machine reach the socket."""
    if opened.family == socket.AF_UNIX:
        return True
    host = opened.getsockname()[0]
    return bool(host == "::1" or host.startswith("127."))
