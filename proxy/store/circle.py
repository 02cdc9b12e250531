"""What the store is told of those who hear of us directly while it is away. Knows nothing of how that is done."""

from typing import Protocol


class Circle(Protocol):
    """The other proxies, as far as they can be told without the store."""

    @property
    def whole(self) -> bool:
        """Everything that others do without the store is told to us directly, so slots may be named."""
        ...

    @property
    def forming(self) -> bool:
        """It will be known in a moment whether it is whole; until then what was heard of others holds."""
        ...

    def tell(self, payload: bytes) -> None:
        """Tell news to those who can be told."""
        ...

    async def formed(self, until_s: float) -> None:
        """Return when it is known whether it is whole, at the latest at a time of the event loop."""
        ...


class NoCircle:
    """Nobody can be told."""

    whole = False
    forming = False

    def tell(self, payload: bytes) -> None:
        """Told to nobody."""

    async def formed(self, until_s: float) -> None:
        """It is known."""
