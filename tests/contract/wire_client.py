"""A client that shows what came over the wire: status, headers as they are, chunks as they were cut."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tests.contract.exchanges import Exchange, Headers

TIMEOUT_S = 60


@dataclass
class Got:
    """One answer."""

    status: int
    headers: Headers
    chunks: list[bytes]
    whole: bool
    """It ended as its head promised."""

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


async def send(
    address: tuple[str, int],
    method: str,
    target: str,
    headers: Headers | None = None,
    body: bytes = b"",
    on_chunk: Callable[[], None] = lambda: None,
) -> Got:
    """One request on a connection of its own; `on_chunk` is called for each chunk of its answer."""
    sent = list(headers or [])
    names = {name.lower() for name, _ in sent}
    if "host" not in names:
        sent.insert(0, ("Host", f"{address[0]}:{address[1]}"))
    if "connection" not in names:
        sent.append(("Connection", "close"))
    if body or method in ("POST", "PUT"):
        sent.append(("Content-Length", str(len(body))))
    head = "\r\n".join([f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in sent], "\r\n"])
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(head.encode("latin-1") + body)
            return await _read(reader, method, on_chunk)
        finally:
            writer.close()


async def replay(address: tuple[str, int], recorded: Exchange, on_chunk: Callable[[], None] = lambda: None) -> Got:
    """The recorded request, as it was sent."""
    return await send(address, recorded.method, recorded.target, recorded.headers, recorded.body, on_chunk)


async def _read(reader: asyncio.StreamReader, method: str, on_chunk: Callable[[], None]) -> Got:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip("\r\n").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    got = Got(int(first.split(" ")[1]), headers, [], whole=True)
    try:
        if got.header("Transfer-Encoding"):
            while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
                got.chunks.append(await reader.readexactly(size))
                await reader.readexactly(2)
                on_chunk()
            await reader.readexactly(2)
        elif method != "HEAD" and got.status != 204:
            length = got.header("Content-Length")
            got.chunks.append(await (reader.readexactly(int(length[0])) if length else reader.read()))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        got.chunks += [error.partial] if isinstance(error, asyncio.IncompleteReadError) and error.partial else []
        got.whole = False
    return got
