"""Owns cutting an engine's byte stream into server-sent events. Must not know what is in them."""

from typing import Final

from proxy.dialects.contract import EngineError

MAX_EVENT_BYTES: Final = 64 * 1024 * 1024
"""Of an event whose end has not come. The largest repeat a whole prompt, images included, and so fit a request body."""


class Events:
    """Bytes in, whole events out: each with its own blank line at the end, so that joining them gives the input."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete with these bytes.

        Raises:
            EngineError: more than `MAX_EVENT_BYTES` came, and still no end of the event.
        """
        if self._rest:
            # Only what is new is searched: an event may come in thousands of reads.
            seam = len(self._rest) - 1
            self._rest += data
            if self._rest.find(b"\n\n", seam) < 0:
                self._check()
                return []
            data = bytes(self._rest)
        *events, rest = data.split(b"\n\n")
        self._rest = bytearray(rest)
        self._check()
        return [event + b"\n\n" for event in events]

    def rest(self) -> bytes:
        """What came after the last whole event; forgotten afterwards."""
        rest, self._rest = bytes(self._rest), bytearray()
        return rest

    def _check(self) -> None:
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EngineError(f"an event of the engine's stream is larger than {MAX_EVENT_BYTES} bytes")


def data_of(event: bytes) -> bytes | None:
    """The data of an event: None for comments and events without any. Engines send one `data:` line per event."""
    start = 0 if event.startswith(b"data:") else event.find(b"\ndata:") + 1
    if start == 0 and not event.startswith(b"data:"):
        return None
    end = event.find(b"\n", start)
    return event[start + 5 : end if end >= 0 else None].strip()
