"""How an attempt ends: with an answer given, or with a failure. Owns no I/O; must not know aiohttp."""

import msgspec

from scheduler.domain import Failure


class Exchanged(msgspec.Struct):
    """How an attempt ended that gave the client an answer."""

    status: int
    """As the engine sent it."""
    error_body: bytes = b""
    """Body of an engine's answer >= 400. It has been passed on, unless the client's head was out already (heartbeats):
    then nothing was written and the caller owes the client an error in the stream's own form."""


class AttemptError(Exception):
    """An attempt that gave no complete answer."""

    def __init__(self, failure: Failure, detail: str, *, committed: bool = False) -> None:
        super().__init__(f"{failure}: {detail}" if detail else str(failure))
        self.failure = failure
        self.detail = detail
        """What the engine or the system said; for the log and for the last error shown, not for headers."""
        self.committed = committed
        """Bytes of this engine's answer went out: no retry; the caller writes its error frame and aborts."""
