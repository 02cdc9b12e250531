"""Recorded exchanges of a real Ollama with their framing: what a stand-in sends, chunk by chunk, and a client must get.

`http_files` reads the same files for their structure only.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.contract.http_files import split_head

GOLDEN = Path(__file__).parent / "golden" / "ollama"

_LEFT_OUT_INSIDE = re.compile(r",?…\[[^\]]*left out\]")
_LEFT_OUT_CHUNKS = re.compile(r"# …(\d+) chunks left out…")
_COUNT = re.compile(r"# (\d+) chunks")
_RAW_CHUNK = re.compile(r"([0-9a-f]+)\n(.*)\n\n")
_TEXT = "word " * 9000
"""Requests that are longer than a context were recorded in part; this takes the place of what they said."""

Headers = list[tuple[str, str]]


@dataclass
class Exchange:
    """One of them."""

    name: str
    method: str
    target: str
    headers: Headers
    """Of the request, without its length."""
    body: bytes
    status: int
    answer_headers: Headers
    """As they came, framing included."""
    chunks: list[bytes]
    """The answer's body: one piece, or the chunks that it came in."""
    chunked: bool

    @property
    def answer(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


def exchanges() -> dict[str, Exchange]:
    """All of them by name."""
    return {path.stem: _read(path) for path in sorted(GOLDEN.glob("*.http"))}


def _read(path: Path) -> Exchange:
    asked, _, answered = path.read_text().partition("\n--- answer")
    first, headers, body = split_head(
        "\n".join(line for line in asked.splitlines() if not line.startswith("# ")) + "\n"
    )
    method, target, _ = first.split(" ")
    status, answer_headers, answer = split_head(answered.partition("\n\n")[2])
    chunked = ("Transfer-Encoding", "chunked") in answer_headers
    sized = int(dict(answer_headers).get("Content-Length", "0"))
    chunks = _chunks(answer, answer_headers) if chunked else [_whole(answer, sized)] if method != "HEAD" else []
    return Exchange(
        name=path.stem,
        method=method,
        target=target,
        headers=[pair for pair in headers if pair[0] != "Content-Length"],
        body=_request_body(path.stem, body.rstrip("\n"), int(dict(headers).get("Content-Length", "0"))),
        status=int(status.split(" ")[1]),
        answer_headers=answer_headers,
        chunks=chunks,
        chunked=chunked,
    )


def _request_body(name: str, text: str, size: int) -> bytes:
    """As it was sent; where a long text was left out, one of the same kind."""
    if "characters left out" not in text:
        body = text.encode()
        assert len(body) in (size, size - 1), f"{name}: {len(body)} bytes are not {size}"
        return body
    before, after = text.split("…")[0], text.split("…")[-1]
    return (before.partition("word ")[0] + _TEXT + after.rpartition("word ")[2]).encode()


def _whole(text: str, size: int) -> bytes:
    """A body of the length that its head names, unless something is left out of it."""
    body = _LEFT_OUT_INSIDE.sub("", text).rstrip("\n").encode()
    shortened = _LEFT_OUT_INSIDE.search(text) is not None
    return body + b"\n" if len(body) == size - 1 or shortened else body


def _chunks(text: str, headers: Headers) -> list[bytes]:
    if _RAW_CHUNK.match(text):
        return [piece.encode() + b"\n" for _, piece in _RAW_CHUNK.findall(text)]
    count = _COUNT.match(text)
    assert count, "a chunked answer says how many chunks it had"
    missing = sum(map(int, _LEFT_OUT_CHUNKS.findall(text)))
    body = "\n".join(line for line in text.split("\n") if not line.startswith("# "))
    body = _LEFT_OUT_INSIDE.sub("", body)
    events = dict(headers).get("Content-Type") == "text/event-stream"
    chunks = _events(body) if events else [f"{line}\n".encode() for line in body.split("\n") if line]
    if not events and dict(headers).get("Content-Type", "").startswith("application/json;"):
        chunks = [b"".join(chunks).rstrip(b"\n")]
    assert len(chunks) == int(count[1]) - missing, f"{len(chunks)} chunks are not {count[1]} without {missing}"
    return chunks


def _events(text: str) -> list[bytes]:
    """Events are shown line by line; a blank line stands between those that came in one chunk."""
    chunks: list[bytes] = []
    named = together = False
    for line in text.strip("\n").split("\n"):
        if not line:
            together = True
            continue
        if line.startswith("event: "):
            chunk, named = f"{line}\n", True
            chunks = [*chunks[:-1], chunks[-1] + chunk.encode()] if together else [*chunks, chunk.encode()]
        elif named or together:
            chunks[-1] += f"{line}\n\n".encode()
            named = False
        else:
            chunks.append(f"{line}\n\n".encode())
        together = False
    return chunks
