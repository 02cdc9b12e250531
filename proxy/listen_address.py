"""Addresses to listen on, as people write them. Opens nothing."""

from pathlib import Path

import msgspec


class ListenAddress(msgspec.Struct, frozen=True):
    """Where clients connect: a TCP address or a unix socket."""

    host: str = ""
    """Name or address to bind; empty: every address of this machine, or a unix socket."""
    port: int = 0
    """0: any free port."""
    unix_path: Path | None = None

    def __str__(self) -> str:
        if self.unix_path is not None:
            return f"unix:{self.unix_path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str) -> ListenAddress:
    """Read `HOST:PORT`, `[IPV6]:PORT`, `:PORT` (every address) or `unix:/PATH`.

    Raises:
        ValueError: it is none of these; the message says how it should look.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise ValueError(f"{text!r}: a unix socket needs an absolute path, such as unix:/run/slotgate/http.sock")
        return ListenAddress(unix_path=Path(path))
    if "://" in text:
        raise ValueError(f"{text!r}: write HOST:PORT without {text.partition('://')[0]}://")
    host, colon, port_text = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
        raise ValueError(f"{text!r}: write HOST:PORT with a port from 0 to 65535")
    if ":" in host and not bracketed:
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, such as [::1]:11434")
    if any(mark in host for mark in "/?#@ "):
        raise ValueError(f"{text!r}: write HOST:PORT, nothing else")
    return ListenAddress(host=host.strip("[]"), port=int(port_text))


def checked_listen(text: str) -> str:
    """The text as it is, if it is such an address: for pydantic."""
    parse_listen(text)
    return text
