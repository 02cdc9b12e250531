"""The progress of one change on several model stores as one stream, in Ollama's own form. Pure: lines in, lines out.

`ollama pull` draws one bar per digest, with the total of its first line, and a spinner per other status. So a digest's
total is that of all model stores from the first line on, its `completed` is the sum of what they told, never less than
before, and a status that ends a phase is told when the last of them says it. What a single model store says passes as
it came.
"""

from typing import Any

import msgspec

LATE = frozenset(
    {
        "verifying sha256 digest",
        "writing manifest",
        "removing any unused layers",
        "removing unused layers",
    }
)
"""Told when all say it: before that, bars would still move."""
SUCCESS = "success"
WAITING = "waiting for another change of the model store"


Told = tuple[str, bytes]
"""A line, and the key under which the next like it replaces it: a digest, or for all others the line itself."""


class Bar(msgspec.Struct):
    """One digest."""

    status: str
    total: int
    """At one model store."""
    completed: dict[str, int]
    """By model store."""


def line(told: dict[str, Any]) -> bytes:
    """One line of a stream."""
    return msgspec.json.encode(told) + b"\n"


def status(text: str) -> bytes:
    """A line with nothing but a status."""
    return line({"status": text})


class Progress:
    """What was told so far, and what follows from a further line."""

    def __init__(self, names: list[str]) -> None:
        """`names`: the model stores that take part."""
        self._running = set(names)
        self._count = len(names)
        self._bars: dict[str, Bar] = {}
        self._said: dict[str, set[str]] = {}
        """Who said a status of those that are told late."""
        self._told: set[str] = set()
        self.latest: dict[str, bytes] = {}
        """For who comes later: the last line of each digest, and the last other one, in the order of their first."""

    def feed(self, name: str, raw: bytes) -> list[Told]:
        """A line (without its end) of one model store; what a client hears then. `success` is left to the end."""
        told = decoded(raw)
        text = told.get("status")
        if not isinstance(text, str) or text == SUCCESS:
            return []
        digest = told.get("digest")
        if isinstance(digest, str) and digest:
            return self._keep(digest, raw + b"\n" if self._count == 1 else self._sum(name, digest, text, told))
        if self._count == 1:
            return self._keep("", raw + b"\n")
        if text in LATE:
            self._said.setdefault(text, set()).add(name)
            return self._due()
        return self._once(text)

    def waiting(self, name: str) -> list[Told]:
        """A model store is being changed by somebody else; said again and again."""
        others = self._running - {name}
        if self._bars or (others and self._told - {WAITING}):
            return []  # they get on: that tells more
        self._told.add(WAITING)
        return self._keep("", status(WAITING))

    def ended(self, name: str) -> list[Told]:
        """A model store is done with it, well or not."""
        self._running.discard(name)
        return self._due() if self._count > 1 else []

    def _sum(self, name: str, digest: str, text: str, told: dict[str, Any]) -> bytes:
        total, completed = _number(told.get("total")), _number(told.get("completed"))
        bar = self._bars.setdefault(digest, Bar(text, total, {}))
        bar.total = bar.total or total
        bar.completed[name] = min(max(completed, bar.completed.get(name, 0)), bar.total)
        shown: dict[str, Any] = {"status": text, "digest": digest, "total": bar.total * self._count}
        if done := sum(bar.completed.values()):  # as Ollama, which leaves out zeros
            shown["completed"] = done
        return line(shown)

    def _due(self) -> list[Told]:
        """Late statuses that all have said who still run; in the order in which they came up."""
        due: list[Told] = []
        for text, names in self._said.items():
            if text not in self._told and self._running <= names:
                due += self._once(text)
        return due

    def _once(self, text: str) -> list[Told]:
        if text in self._told:
            return []
        self._told.add(text)
        return self._keep("", status(text))

    def _keep(self, key: str, told: bytes) -> list[Told]:
        if not key:
            self.latest.pop("", None)  # what is said last comes last
        self.latest[key] = told
        return [(key or told.decode(errors="replace"), told)]


def error(text: str) -> bytes:
    """An error as Ollama writes it, as a line without its end or as a whole body."""
    return msgspec.json.encode({"error": text})


def error_of(raw: bytes) -> str | None:
    """The text of a line that is an error; None: it is none."""
    told = decoded(raw)
    if "error" not in told:
        return None
    text = told["error"]
    return text if isinstance(text, str) else msgspec.json.encode(text).decode()


def is_success(raw: bytes) -> bool:
    """Whether a line says that all is done."""
    return decoded(raw).get("status") == SUCCESS


def decoded(raw: bytes) -> dict[str, Any]:
    """A line's object; empty: it is none."""
    try:
        told = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return told if isinstance(told, dict) else {}


def _number(value: object) -> int:
    return max(0, int(value)) if isinstance(value, int | float) and not isinstance(value, bool) else 0
