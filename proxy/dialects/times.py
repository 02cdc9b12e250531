"""Owns how times look in Ollama's answers. Reads no clock."""

from datetime import UTC, datetime
from functools import lru_cache

NS = 1_000_000_000


@lru_cache(maxsize=8)
def _to_the_second(seconds: int) -> str:
    """Streams ask for the same second many times."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def rfc3339_nano(unix_ns: int) -> str:
    """Unix time in nanoseconds as Go's RFC3339Nano shows it in UTC: the fraction without trailing zeros."""
    seconds, fraction = divmod(unix_ns, NS)
    text = _to_the_second(seconds)
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else f"{text}Z"


def unix_seconds(rfc3339: str) -> float | None:
    """Seconds since 1970 of an RFC 3339 time, UTC where it names no zone; None for anything else."""
    try:
        moment = datetime.fromisoformat(rfc3339)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def unix_s(rfc3339: str) -> int:
    """Whole seconds of an RFC 3339 time; 0 where there is none or it cannot be read."""
    return int(unix_seconds(rfc3339) or 0)


def duration_ns(milliseconds: float) -> int:
    """Milliseconds as whole nanoseconds, in steps of a microsecond: engines measure no finer."""
    return round(milliseconds * 1000) * 1000
