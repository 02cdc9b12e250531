"""A connection counter between a client and what it talks to: passes bytes on, both ways, unread."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Tap:
    """Listens on a loopback port; `connections` says how many were made to it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._there = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # A thread that waits for a socket wakes up when it is shut down, not when it is closed.
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                there = socket.create_connection(self._there)
                self._sockets += [client, there]
                for source, sink in ((client, there), (there, client)):
                    thread = threading.Thread(target=_pass_on, args=(source, sink), daemon=True)
                    self._threads.append(thread)
                    thread.start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
