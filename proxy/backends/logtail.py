"""Owns reading an engine's captured log backwards: why did it end? Knows how engines word their errors."""

import re
from pathlib import Path

_TAIL_BYTES = 32 * 1024
_BAD = re.compile(
    r"error|fail|cannot|couldn't|panic|fatal|out of memory|no such file|abort|terminat|exception", re.IGNORECASE
)
_HARMLESS = re.compile(r'got exception: \{|"error":')
"""Requests that the engine refused: no reason to end."""
_OURS = "slotgate keeper:"
_EMBEDDED = "slotgate embedded engine: error: "
_STAMP = re.compile(r"^[\d.:TZ+ -]+[DIWE] ")
_LONGEST = 300


def size(path: Path) -> int:
    """Bytes in a log now; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def tail(path: Path, since: int = 0) -> list[str]:
    """The last lines written after the offset `since` (bytes), without the keeper's own."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            start = since if since <= end else 0  # it was renamed and begun anew
            file.seek(max(start, end - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(_OURS)]


def cause(path: Path, since: int = 0) -> str:
    """One line for `status`: the first and the last complaint of the engine; empty if it did not complain.

    The first complaint names the root (a file that is missing, memory that ran out), the last the consequence.
    """
    lines = tail(path, since)
    for line in reversed(lines):
        if line.startswith(_EMBEDDED) and "see the lines above" not in line:
            return line.removeprefix(_EMBEDDED)[:_LONGEST]
    bad = [line for line in lines if _BAD.search(line) and not (_HARMLESS.search(line) or line.startswith(_EMBEDDED))]
    chosen = dict.fromkeys(_STAMP.sub("", line)[:_LONGEST] for line in (*bad[:1], *bad[-1:]))
    return " ... ".join(chosen)


def last(path: Path, since: int = 0) -> str:
    """The last line, for an engine that ended by itself without a complaint."""
    return _STAMP.sub("", "".join(tail(path, since)[-1:]))[:_LONGEST]
