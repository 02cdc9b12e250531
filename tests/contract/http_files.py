"""Reads the `.http` files under `golden/`: one exchange of a real engine each."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tests.contract.shapes import collapse, shape

GOLDEN = Path(__file__).parent / "golden"
_LEFT_OUT = re.compile(r",?…\[[^\]]*left out\]")


@dataclass
class Golden:
    """One recorded exchange."""

    name: str
    method: str
    path: str
    headers: dict[str, str]
    body: str
    status: int
    answer_headers: list[tuple[str, str]]
    answer: str

    @property
    def is_stream(self) -> bool:
        kind = dict(self.answer_headers).get("Content-Type", "")
        return kind in {"text/event-stream", "application/x-ndjson"}

    @property
    def json(self) -> Any:
        return orjson.loads(self.answer)

    @property
    def frames(self) -> list[Any]:
        """The structure of a stream, without repetitions; what is left out counts as repetition."""
        return frames_of(self.answer)


def frames_of(text: str) -> list[Any]:
    """The structure of a stream of events or JSON lines, whatever its framing."""
    found: list[Any] = []
    event = ""
    for line in text.splitlines():
        if line.startswith("event: "):
            event = line
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
            found.append((event, data if data == "[DONE]" else shape(orjson.loads(data))))
        elif line.startswith("{"):
            found.append(("", shape(orjson.loads(line))))
    return collapse(found)


def split_head(text: str) -> tuple[str, list[tuple[str, str]], str]:
    """First line, headers, body."""
    head, _, body = text.partition("\n\n")
    first, *rest = head.splitlines()
    headers = []
    for line in rest:
        name, _, value = line.partition(":")
        headers.append((name, value.strip()))
    return first, headers, body


def read_golden(path: Path) -> Golden:
    """Read one file."""
    text = path.read_text()
    asked, _, answered = text.partition("\n--- answer")
    asked = "\n".join(line for line in asked.splitlines() if not line.startswith("# "))
    first, headers, body = split_head(asked)
    method, url, _ = first.split(" ", 2)
    status_line, answer_headers, answer = split_head(answered.split("\n", 2)[2])
    lines = [line for line in answer.splitlines() if not line.startswith("# ")]
    return Golden(
        name=path.stem,
        method=method,
        path=url,
        headers=dict(headers),
        body=body.strip(),
        status=int(status_line.split(" ", 2)[1]),
        answer_headers=answer_headers,
        answer=_LEFT_OUT.sub("", "\n".join(lines)).strip(),
    )


def goldens(folder: str) -> dict[str, Golden]:
    """All of one engine, by name."""
    return {path.stem: read_golden(path) for path in sorted((GOLDEN / folder).glob("*.http"))}
