"""Owns cutting an engine's byte stream into server-sent events. Must not know what is in them."""


class Events:
    """Bytes in, whole events out: each with its own blank line at the end, so that joining them gives the input."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete with these bytes."""
        data = self._rest + data if self._rest else data
        *events, self._rest = data.split(b"\n\n")
        return [event + b"\n\n" for event in events]

    def rest(self) -> bytes:
        """What came after the last whole event; forgotten afterwards."""
        rest, self._rest = self._rest, b""
        return rest


def data_of(event: bytes) -> bytes | None:
    """The data of an event: None for comments and events without any. Engines send one `data:` line per event."""
    start = 0 if event.startswith(b"data:") else event.find(b"\ndata:") + 1
    if start == 0 and not event.startswith(b"data:"):
        return None
    end = event.find(b"\n", start)
    return event[start + 5 : end if end >= 0 else None].strip()
