"""The program of an emulated Ollama's hidden child. The standard library only, and little of it: many may run.

Started by `ollama_children` as `llama-server -I -S THIS_FILE ...`, with two descriptors named in EMULATED_CHILD: the
listening socket, and a channel to its parent, which knows the answers. It passes requests on as lines
`ID METHOD TARGET KEEP`, and gets `ID LENGTH` and so many bytes back; under `*PATH` instead of an id, what it answers
itself once the parent has gone. It then lives on for a while, as llama-server does when `ollama serve` was killed.
"""

import os
import selectors
import signal
import socket
import sys
import time

ORPHAN_S = 600.0
"""The real one lives on for ever. This one must not be left behind by a test that forgot it."""
_NOBODY = b"HTTP/1.1 404 Not Found\r\nServer: llama.cpp\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_OWN_ARGUMENTS = 3


def look_like_llama_server() -> None:
    """Take the interpreter's own arguments out of what the process table shows; as many slashes fill the gap."""
    with open("/proc/self/stat") as file:  # noqa: PTH123 - no pathlib here
        start, end = file.read().rpartition(")")[2].split()[45:47]
    with open("/proc/self/cmdline", "rb") as file:  # noqa: PTH123
        program, *rest = file.read().split(b"\0")
    folder, _, name = program.rpartition(b"/")
    kept = b"\0".join(rest[_OWN_ARGUMENTS:])
    slashes = int(end) - int(start) - len(folder) - len(name) - len(kept) - 1
    with open("/proc/self/mem", "r+b", 0) as file:  # noqa: PTH123
        file.seek(int(start))
        file.write(folder + b"/" * slashes + name + b"\0" + kept)


def tidy_up(program: str) -> None:
    """Take the link away by which we were started, and its directory, which was made for us."""
    try:
        os.unlink(program)  # noqa: PTH108
        os.rmdir(os.path.dirname(program))  # noqa: PTH106, PTH120
    except OSError as error:
        sys.stderr.write(f"{error}\n")


class Child:
    """The sockets of one child."""

    def __init__(self, listening: socket.socket, channel: socket.socket) -> None:
        self.selector = selectors.DefaultSelector()
        self.channel: socket.socket | None = channel
        self.listening = listening
        self.last_words: dict[bytes, bytes] = {}
        self.asked: dict[bytes, tuple[socket.socket, bytes, bool]] = {}
        self.received: dict[socket.socket, bytes] = {}
        self.from_parent = b""
        self.count = 0
        self.ends_at = float("inf")
        listening.setblocking(False)
        self.selector.register(listening, selectors.EVENT_READ)
        self.selector.register(channel, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until killed, or for a while after the parent has gone."""
        while (left := self.ends_at - time.monotonic()) > 0:
            for key, _ in self.selector.select(None if left == float("inf") else left):
                if key.fileobj is self.listening:
                    self.accept()
                elif key.fileobj is self.channel:
                    self.hear()
                elif isinstance(key.fileobj, socket.socket):
                    self.read(key.fileobj)

    def accept(self) -> None:
        """A client."""
        try:
            client = self.listening.accept()[0]
        except OSError:
            return
        client.settimeout(5)
        self.received[client] = b""
        self.selector.register(client, selectors.EVENT_READ)

    def read(self, client: socket.socket) -> None:
        """Bytes of a client: ask the parent, or answer if there is none."""
        try:
            data = client.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.drop(client)
            return
        head, found, rest = (self.received[client] + data).partition(b"\r\n\r\n")
        self.received[client] = rest if found else head
        if not found:
            return
        method, target = (*head.split(b"\r\n", 1)[0].split(b" "), b"", b"")[:2]
        keep = b"connection: close" not in head.lower()
        if self.channel is None:
            self.answer(client, self.last_words.get(target.partition(b"?")[0], _NOBODY), keep)
            return
        self.count += 1
        self.asked[b"%d" % self.count] = client, target, keep
        self.channel.sendall(b"%d %s %s %d\n" % (self.count, method, target, keep))

    def answer(self, client: socket.socket, data: bytes, keep: bool) -> None:
        """Send an answer to a client that is still there."""
        if client not in self.received:
            return
        try:
            client.sendall(data)
        except OSError:
            keep = False
        if not keep:
            self.drop(client)

    def drop(self, client: socket.socket) -> None:
        """Close a client's connection."""
        if self.received.pop(client, None) is not None:
            self.selector.unregister(client)
            client.close()

    def hear(self) -> None:
        """Answers of the parent; or its end."""
        data = self.channel.recv(1 << 20) if self.channel is not None else b""
        if not data:
            self.orphaned()
            return
        self.from_parent += data
        while b"\n" in self.from_parent:
            line, _, rest = self.from_parent.partition(b"\n")
            name, length = line.split(b" ")
            if len(rest) < int(length):
                return
            body, self.from_parent = rest[: int(length)], rest[int(length) :]
            if name.startswith(b"*"):
                self.last_words[name[1:]] = body
            else:
                client, _, keep = self.asked.pop(name)
                self.answer(client, body, keep)

    def orphaned(self) -> None:
        """The parent has gone: answer alone from now on."""
        if self.channel is not None:
            self.selector.unregister(self.channel)
            self.channel.close()
            self.channel = None
        self.ends_at = time.monotonic() + ORPHAN_S
        for client, target, keep in self.asked.values():
            self.answer(client, self.last_words.get(target.partition(b"?")[0], _NOBODY), keep)
        self.asked.clear()


def main() -> None:
    """Serve."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        look_like_llama_server()
    except OSError as error:  # not Linux, or not allowed to: it only looks different
        sys.stderr.write(f"{error}\n")
    tidy_up(sys.orig_argv[0])
    listening, channel = (int(number) for number in os.environ["EMULATED_CHILD"].split(","))
    Child(socket.socket(fileno=listening), socket.socket(fileno=channel)).run()


if __name__ == "__main__":
    main()
