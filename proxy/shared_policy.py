"""One policy for all proxies of a fleet: the document in the store, taken over from there and put there.

The document carries its own version; the higher one wins. The file in the state directory is the copy that is used
while the store is away. What a configuration says of the policy stays each proxy's own.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog

from proxy.admin_api import PolicyChangedAnswer
from proxy.policies import PolicyDocument, Shared
from proxy.store.trouble import StoreDown
from proxy.tasks import Tasks

log = structlog.get_logger("slotgate.policies")

TRIES = 8
"""So often a change is made again because another proxy was faster."""

_decoder = msgspec.json.Decoder(Shared)


class PolicyStore(Protocol):
    """Where the fleet keeps the document."""

    async def policy(self) -> tuple[int, bytes] | None:
        """Number and document; None: there is none. Raises StoreDown."""
        ...

    async def set_policy(self, document: bytes, expected_version: int | None) -> int | None:
        """Replace the one of that number (None: there is none); None: somebody was faster. Raises StoreDown."""
        ...


class SharedPolicy:
    """Keeps one proxy's policy the same as the fleet's."""

    def __init__(self, policies: PolicyDocument, store: PolicyStore) -> None:
        self.on_set: Callable[[int], None] = lambda _version: None
        """Called with its version after a document was put into the store, to tell the other proxies."""
        self._policies = policies
        self._store = store
        self._alone = False
        """A change was made here that could not be put into the store."""
        self._seen_version = 0
        """Of the store's document when it was last read; 0: there was none."""
        self._turn = asyncio.Lock()
        self._tasks = Tasks()

    async def close(self) -> None:
        """Stop what runs."""
        await self._tasks.close()

    def heard(self) -> None:
        """Another proxy set the policy, or the store is back, perhaps without what it had: agree again, soon."""
        self._tasks.start(self.agree(), "policy of the fleet")

    async def agree(self) -> None:
        """Take the fleet's policy over if it is newer, put ours there if that is. Without the store: as it is."""
        async with self._turn:
            try:
                for _ in range(TRIES):
                    number = await self._take_over()
                    if not self._is_ahead or await self._put(number):
                        self._alone = False
                        return
            except StoreDown:
                return  # called again when it is back

    async def change(self, change: Callable[[], PolicyChangedAnswer]) -> PolicyChangedAnswer:
        """Change this proxy's policy, on top of the fleet's, and so the fleet's.

        Args:
            change: does it here; called again if another proxy changed something at the same time.

        Returns:
            What the change did. Without the store it holds here at once, and for others when the store is back.

        Raises:
            PolicyError: by `change`; nothing has changed.
        """
        async with self._turn:
            answer, why = None, "other proxies change it all the time"
            try:
                for _ in range(TRIES):
                    number = await self._take_over(again=answer is not None)
                    answer = change()
                    if not self._is_ahead or await self._put(number):
                        self._alone = False
                        return answer
            except StoreDown:
                why = "the store is away"
            answer = answer or change()
            self._alone = True
            log.warning("policy changed at this proxy only, for now", version=answer.version, reason=why)
            return answer

    @property
    def _is_ahead(self) -> bool:
        """Whether the store's document, as last read, is older than ours."""
        return self._policies.shared.version > self._seen_version

    async def _take_over(self, *, again: bool = False) -> int | None:
        """Read the store's document, and take it over unless ours is newer. Returns its number in the store.

        `again`: whatever it is, since ours was made on top of another one.
        """
        found = await self._store.policy()
        self._seen_version = 0
        if found is None:
            return None
        number, document = found
        try:
            theirs = _decoder.decode(document)
        except msgspec.MsgspecError as error:
            log.error("policy of the fleet not understood, it is replaced", error=str(error))
            return number
        ours = self._policies.shared
        self._seen_version = theirs.version
        if again or theirs.version >= ours.version:
            lost = self._alone and not again and theirs != ours
            if self._policies.adopt(theirs):
                log.info("policy taken over from the fleet", version=theirs.version, before=ours.version)
            if lost:
                log.warning("policy set here while the store was away is replaced by the fleet's", lost=ours.set)
        return number

    async def _put(self, number: int | None) -> bool:
        """Put ours into the store, in place of the document of that number. False: somebody was faster."""
        ours = self._policies.shared
        if await self._store.set_policy(msgspec.json.encode(ours), number) is None:
            return False
        self._seen_version = ours.version
        self.on_set(ours.version)
        return True
