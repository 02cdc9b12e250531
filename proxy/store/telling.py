"""What this proxy tells the others through the log, in order, without waiting. Knows nothing of its content.

What was posted and not answered when the connection broke is posted again on the next one, before anything newer: told
twice rather than never. Once the store is given up it is dropped; on return the owner tells where it stands.
"""

from collections import deque

import structlog

from proxy.store.fleet_scripts import TELL
from proxy.store.keys import Keys
from proxy.store.link import Link, State

log = structlog.get_logger("slotgate.store")

UNANSWERED_MAX = 10_000
"""Beyond it the oldest is given up; many times what is under way within one call timeout."""


class Telling:
    """The way into the log for news that goes with no claim and no release."""

    def __init__(self, link: Link, keys: Keys, owner: str) -> None:
        """Nothing is told yet."""
        self._link = link
        self._keys = (keys.log, keys.log_count)
        self._owner = owner
        self._unanswered: deque[bytes] = deque(maxlen=UNANSWERED_MAX)

    def tell(self, news: bytes) -> None:
        """Append an entry to the log."""
        if news and self._link.state is not State.DOWN:
            self._unanswered.append(news)
            self._post(news)

    def again(self) -> None:
        """A new connection: post what was not answered on the old one."""
        for news in self._unanswered:
            self._post(news)

    def drop(self) -> None:
        """The store was given up."""
        self._unanswered.clear()

    def _post(self, news: bytes) -> None:
        self._link.post(TELL, self._keys, (self._owner, news), self._answered)

    def _answered(self, _reply: int) -> None:
        if self._unanswered:
            self._unanswered.popleft()
