"""What a store told its owner, kept for comparison."""

from proxy.store.store import Store


class Heard:
    """Everything that came through the callbacks of one store."""

    def __init__(self, store: Store) -> None:
        self.news: list[tuple[str, bytes]] = []
        self.gaps = 0
        self.owners: list[frozenset[str] | set[str]] = []
        store.on_news = lambda owner, payload: self.news.append((owner, payload))
        store.on_gap = self._gap
        store.on_proxies = self.owners.append

    def _gap(self) -> None:
        self.gaps += 1


async def following(store: Store, after: int | None = None) -> Heard:
    """Follow the log and keep what is heard."""
    heard = Heard(store)
    await store.follow(after)
    return heard
