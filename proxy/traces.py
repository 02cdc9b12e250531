"""Published traces of LLM serving, read from their files as clients of a simulation. Owns no simulation.

Formats, each as its authors publish it: `mooncake` (JSON lines: `timestamp` in ms, `input_length`, `output_length`,
`hash_ids`), `azure` (CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`), `lmcache` (JSON lines, a file or a directory of
them: `timestamp` in us, `input`, `output`, `session_id`).
"""

import csv
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from scheduler.simulation.conversations import Session
from scheduler.simulation.trace_prompts import of_lengths, of_mooncake, of_texts

R = TypeVar("R", bound=msgspec.Struct)

LONGEST_TOKENS = 24_000
"""Requests of a Mooncake trace with longer prompts are left out: few of them would fill a card of 24 GB."""


class Trace(NamedTuple):
    """A trace, and how it is to be replayed."""

    path: Path
    format: str
    """A key of `FORMATS`."""
    rate: float | None = None
    """Sessions per second, on average: arrivals are stretched or pressed together; None: as recorded."""
    duration_s: float | None = None
    """Of the recording, only this much from its start on; None: all of it."""


class TraceError(ValueError):
    """The trace cannot be read; the message names the file and what is wrong with it."""


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class _TextRow(msgspec.Struct):
    timestamp: float
    input: str
    output: str
    session_id: str


@lru_cache(maxsize=2)
def sessions(trace: Trace, seed: int) -> list[Session]:
    """The clients of a trace, by arrival; the first one comes at 0 or soon after.

    Args:
        trace: where it is, and how fast it is to be played.
        seed: of what is not recorded. Only `mooncake` has such: where in a tick of 3 s a request came.

    Raises:
        TraceError: a file cannot be read or is not of that format, or no request is left.
    """
    path = trace.path
    try:
        made = FORMATS[trace.format](path, seed)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text") from error
    if trace.duration_s is not None:
        made = [session for session in made if session.arrives_ms < trace.duration_s * 1000]
    if not made:
        raise TraceError(f"{path}: no request in it that could be replayed")
    if trace.rate is None:
        return made
    stretch = rate_of(made) / trace.rate
    return [session._replace(arrives_ms=session.arrives_ms * stretch) for session in made]


def rate_of(made: list[Session]) -> float:
    """Sessions per second of the time in which they arrive."""
    span_ms = made[-1].arrives_ms - made[0].arrives_ms
    return (len(made) - 1) * 1000 / span_ms if span_ms > 0 else float(len(made))


def _mooncake(path: Path, seed: int) -> list[Session]:
    return of_mooncake(
        [msgspec.structs.asdict(row) for row in _json_lines(path, _MooncakeRow)], seed, most_tokens=LONGEST_TOKENS
    )


def _azure(path: Path, _seed: int) -> list[Session]:
    rows: list[tuple[float, int, int]] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        for row in reader:
            try:
                at_s = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
                rows.append((at_s, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
            except KeyError as error:
                raise TraceError(f"{path}: it has no column {error.args[0]}") from None
            except (TypeError, ValueError) as error:
                raise TraceError(f"{path}, line {reader.line_num}: {error}") from None
    start_s = min((at_s for at_s, _, _ in rows), default=0.0)
    return of_lengths([(at_s - start_s, asked, answered) for at_s, asked, answered in rows])


def _lmcache(path: Path, _seed: int) -> list[Session]:
    paths = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    found: dict[str, list[tuple[float, str, str]]] = {}
    for file in paths:
        for row in _json_lines(file, _TextRow):
            found.setdefault(row.session_id, []).append((row.timestamp / 1000, row.input, row.output))
    start_ms = min((row[0] for rows in found.values() for row in rows), default=0.0)
    in_order = {name: sorted(rows) for name, rows in found.items()}  # the files are not
    return of_texts(
        {name: [(at - start_ms, asked, answered) for at, asked, answered in rows] for name, rows in in_order.items()}
    )


FORMATS: dict[str, Callable[[Path, int], list[Session]]] = {"mooncake": _mooncake, "azure": _azure, "lmcache": _lmcache}
"""Name -> reads a trace with a seed."""


def _json_lines(path: Path, kind: type[R]) -> Iterator[R]:
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield decoder.decode(line)
                except msgspec.DecodeError as error:
                    raise TraceError(f"{path}, line {number}: {error}") from None
