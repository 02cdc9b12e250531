"""A store that grants everything at once and keeps nothing: what a proxy costs beside it is not the store's cost."""

from collections.abc import Callable, Iterable
from typing import Any

from proxy.store import BackendListing, BackendRecord, ClaimReply, Occupancy


class NoStore:
    """Has the surface of `proxy.store.Store`."""

    def __init__(self, _url: str, *, proxy_id: str, **_settings: Any) -> None:
        self.owner = proxy_id
        self.proxies = (proxy_id,)
        self.up = True
        self.trouble = None
        self.position = 0
        self.on_change: Callable[[bool], None]
        self.on_lost: Callable[[Any], None]
        self.on_news: Callable[[str, bytes], None]
        self.on_gap: Callable[[], None]
        self.on_proxies: Callable[[frozenset[str]], None]

    async def start(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to close."""

    async def claim(
        self, _backend: str, _nonce: str, seats: int, _limit: int, epoch: int, *_slot_and_news: Any
    ) -> ClaimReply:
        return ClaimReply(granted=True, seats_total=seats, seats_mine=seats, draining=False, epoch=epoch)

    def give_back(self, _backend: str, _nonce: str, _news: bytes = b"") -> None:
        """Nothing is kept."""

    async def occupancy(self, backends: Iterable[str]) -> dict[str, Occupancy]:
        return {name: Occupancy(0, 0, draining=False) for name in backends}

    async def heartbeat(self, _records: Iterable[BackendRecord]) -> None:
        """Nobody to tell."""

    async def backends(self) -> list[BackendListing]:
        return []

    async def set_draining(self, _backend: str, _draining: bool) -> None:
        """Nobody to tell."""

    async def follow(self, _after: int | None = None) -> None:
        """There is no log."""

    async def caught_up(self) -> None:
        """There is no log."""

    def tell(self, _news: bytes) -> None:
        """Nobody to tell."""

    async def save_picture(self, _payload: bytes, _at: int) -> None:
        """Nobody to show it."""

    async def load_picture(self) -> None:
        return None

    async def policy(self) -> None:
        return None

    async def set_policy(self, _document: bytes, _expected_version: int | None) -> int | None:
        return 1
