"""An engine that costs as little as Python can: paced streams over Ollama's API, so that a proxy is what is measured.

`python -m tests.bench.engine --port 0 --pace-ms 10` prints its port. A request's `num_predict` says how many chunks its
stream has; -1: one chunk, then silence with the stream left open.
"""

import argparse
import asyncio
import json
import sys
from typing import Any

import uvloop

from tests.bench.ticks import Ticks

MODEL = "bench:latest"
LINE = (
    b'{"model":"bench","created_at":"2026-11-29T19:19:48.060629236Z",'
    b'"message":{"role":"assistant","content":" token"},"done":false}\n'
)
END = (
    b'{"model":"bench","created_at":"2026-11-29T19:19:48.060629236Z","message":{"role":"assistant","content":""},'
    b'"done":true,"done_reason":"stop","total_duration":1000000,"load_duration":1000,"prompt_eval_count":10,'
    b'"prompt_eval_duration":1000,"eval_count":100,"eval_duration":1000000}\n'
)
WHOLE = END.replace(b'"content":""', b'"content":"a short answer"')
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nDate: Sun, 29 Nov 2026 19:19:48 GMT\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
DETAILS = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "1M",
    "quantization_level": "Q4_1",
}
ENTRY = {"name": MODEL, "model": MODEL, "size": 1, "digest": "0" * 64, "details": DETAILS}
FACTS: dict[str, Any] = {
    "/api/version": {"version": "0.35.0"},
    "/api/tags": {"models": [{**ENTRY, "modified_at": "2026-11-29T19:12:43Z", "capabilities": ["completion"]}]},
    "/api/ps": {
        "models": [{**ENTRY, "expires_at": "2036-11-29T19:19:18Z", "size_vram": 1, "context_length": 4096}],
    },
    "/api/show": {
        "modelfile": "",
        "template": "{{ .Prompt }}",
        "details": DETAILS,
        "model_info": {"general.architecture": "llama", "llama.context_length": 4096},
        "capabilities": ["completion"],
    },
}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def sized(body: bytes, kind: bytes = b"application/json; charset=utf-8") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (kind, len(body), body)


TOKEN = chunk(LINE)
LAST = chunk(END) + b"0\r\n\r\n"
SHORT = sized(WHOLE)
TALK = ("/api/chat", "/api/generate")


SPOKES_PER_MS = 10


class Pacer:
    """Writes one chunk to each stream per period, the streams spread evenly over it in steps of 0.1 ms.

    Reads of a proxy then hold one chunk each, the hardest case for it.
    """

    def __init__(self, pace_ms: int) -> None:
        self._wheel: list[list[Engine]] = [[] for _ in range(pace_ms * SPOKES_PER_MS)]
        self._turn = 0
        self._count = 0
        self._ticks = Ticks(1_000_000 // SPOKES_PER_MS, self._tick)

    def add(self, stream: "Engine") -> None:
        self._wheel[self._count % len(self._wheel)].append(stream)
        self._count += 1

    def _tick(self, passed: int) -> None:
        for _ in range(passed):
            self._turn = (self._turn + 1) % len(self._wheel)
            streams = self._wheel[self._turn]
            if streams:
                self._wheel[self._turn] = [stream for stream in streams if stream.go_on()]


class Engine(asyncio.Protocol):
    """One connection."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._transport: Any = None
        self._buffer = b""
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def go_on(self) -> bool:
        """Write the next chunk; False after the last one."""
        if self._transport is None:
            return False
        self._left -= 1
        if self._left > 0:
            self._transport.write(TOKEN)
            return True
        self._transport.write(LAST)
        return False

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            length = 0
            if (mark := head.lower().find(b"content-length:")) >= 0:
                length = int(head[mark + 15 :].split(b"\r\n", 1)[0])
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            self._answer(head.split(b" ", 2)[1].decode(), body)

    def _answer(self, path: str, body: bytes) -> None:
        if path not in TALK:
            facts = FACTS.get(path)
            answer = sized(json.dumps(facts).encode()) if facts else sized(b"Ollama is running", b"text/plain")
            self._transport.write(answer)
        elif b'"stream":false' in body:
            self._transport.write(SHORT)
        else:
            chunks = json.loads(body)["options"]["num_predict"]
            self._left = chunks
            self._transport.write(STREAM_HEAD + TOKEN)
            if chunks > 0:
                self._pacer.add(self)


async def serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    pacer = Pacer(options.pace_ms)
    # Kept in a list: a server that nobody refers to is closed.
    servers = [await loop.create_server(lambda: Engine(pacer), "127.0.0.1", options.port, backlog=4096)]
    if options.unix:
        servers.append(await loop.create_unix_server(lambda: Engine(pacer), options.unix, backlog=4096))
    print(servers[0].sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--unix", help="listen on this unix socket too")
    parser.add_argument("--pace-ms", type=int, default=10)
    uvloop.run(serve(parser.parse_args()))
