"""A unix socket in front of a store that loses answers and cuts connections on demand."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Self

from proxy.tasks import Tasks


class LossySocket:
    """Forwards bytes both ways until told otherwise. `async with` opens and closes it."""

    def __init__(self, behind: str, directory: Path) -> None:
        self._behind = behind.removeprefix("unix://")
        self._path = directory / "lossy.sock"
        self.url = f"unix://{self._path}"
        self.lose_answers = False
        """The next answer is not forwarded; the connection is cut instead."""
        self.hold_answers = False
        """Answers are read and kept back for good."""
        self.closed = False
        """New connections are refused."""
        self.losses = 0
        self.forwarded = 0
        """Writes of the client that reached the store."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks = Tasks()
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_unix_server(self._accept, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self.cut()
        await self._tasks.close()

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self.closed:
            writer.transport.abort()
            return
        try:
            inner_reader, inner_writer = await asyncio.open_unix_connection(self._behind)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(inner_writer)
        self._tasks.start(self._asking(reader, inner_writer), "lossy socket, to the store")
        self._tasks.start(self._answering(inner_reader, writer, inner_writer), "lossy socket, from the store")

    async def _asking(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                self.forwarded += 1
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def _answering(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asking: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self.lose_answers:
                    self.lose_answers = False
                    self.losses += 1
                    asking.transport.abort()
                    break
                if not self.hold_answers:
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()
