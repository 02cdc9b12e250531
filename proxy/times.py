"""Points in time as engines write them, and as programs want them."""

from datetime import UTC, datetime


def unix_seconds(rfc3339: str) -> float | None:
    """Seconds since 1970 of a time such as `2026-11-29T19:12:43.799875269Z`; None for anything else."""
    try:
        moment = datetime.fromisoformat(rfc3339)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
