"""Where and how a backend is reached."""

import re
from urllib.parse import urlsplit

import msgspec

MASK = "********"
"""Stands where a secret stood."""


class Gate(msgspec.Struct, frozen=True):
    """The way into another box: connect there, speak TLS if wanted, CONNECT to the backend; then it is the engine."""

    host: str
    port: int
    backend: str
    """Name of the backend as its own box calls it."""
    tls: bool = False


class Endpoint(msgspec.Struct, frozen=True):
    """An address of an engine and the headers that it wants from us."""

    host: str
    """What goes into the Host header: `127.0.0.1:8080`, or `localhost` on a unix socket."""
    port: int = 0
    address: str = ""
    """Host name or address to connect to; empty on a unix socket."""
    unix_path: str | None = None
    prefix: str = ""
    """Path prefix without trailing slash (from a URL such as http://box:8080/llm)."""
    headers: tuple[tuple[str, str], ...] = ()
    """Added to every request: the internal API key of a managed llama-server.

    Empty behind a gate: API keys do not leave their box through the store; the gate knows them.
    """
    gate: Gate | None = None
    """Where another box lets us in; None: the address is reached directly."""

    def __str__(self) -> str:
        place = f"unix:{self.unix_path}" if self.unix_path else f"http://{self.host}{self.prefix}"
        return f"{place} through {self.gate.host}:{self.gate.port}" if self.gate else place


def parse_endpoint(url: str, api_key: str | None = None) -> Endpoint:
    """Read `http://host:port[/prefix]` or `unix:/path/to/socket`.

    Raises:
        ValueError: it is neither; the message says what is wrong and how it should look.
    """
    headers = (("Authorization", f"Bearer {api_key}"),) if api_key else ()
    if url.startswith("unix:"):
        path = url.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise ValueError(f"{url!r}: a unix socket needs an absolute path, such as unix:/run/llama.sock")
        return Endpoint(host="localhost", unix_path=path, headers=headers)
    scheme, separator, rest = url.partition("://")
    if not separator or scheme != "http":
        raise ValueError(f"{url!r}: write http://HOST:PORT or unix:/PATH")
    authority, slash, prefix = rest.partition("/")
    prefix = f"/{prefix}".rstrip("/") if slash else ""
    if any(mark in rest for mark in "?#@ "):
        raise ValueError(f"{url!r}: a backend URL has no query, fragment, user or space")
    name, colon, port_text = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        name, port_text = authority, "80"
    if not name or not port_text.isascii() or not port_text.isdigit() or not 0 < int(port_text) < 65536:
        raise ValueError(f"{url!r}: write http://HOST:PORT with a port from 1 to 65535")
    return Endpoint(host=authority, port=int(port_text), address=name.strip("[]"), prefix=prefix, headers=headers)


def is_local(endpoint: Endpoint) -> bool:
    """Whether the address means something on its own box only."""
    address = endpoint.address
    return endpoint.unix_path is not None or address in ("localhost", "::1") or address.startswith("127.")


def identity(endpoint: Endpoint, box: str) -> str:
    """One name for one engine, whatever each proxy of a fleet calls it: what the store counts its leases under.

    Sockets and loopback addresses mean another engine on another box, so the box is part of their name.
    """
    if endpoint.unix_path is not None:
        return f"{box}{endpoint.unix_path}"
    place = f"{endpoint.address}:{endpoint.port}{endpoint.prefix}"
    return f"{box}/{place}" if is_local(endpoint) else place


def shown_url(url: str) -> str:
    """A URL without its password, also where it stands in the query."""
    parts = urlsplit(url)
    if parts.password is not None:
        user, _, place = parts.netloc.rpartition("@")
        url = url.replace(parts.netloc, f"{user.partition(':')[0]}:{MASK}@{place}", 1)
    base, mark, query = url.partition("?")
    return base + mark + re.sub(r"((?:^|&)[^=&]*passw[^=&]*=)[^&]*", rf"\g<1>{MASK}", query, flags=re.IGNORECASE)
