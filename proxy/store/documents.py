"""A document that the whole fleet shares, such as its policy: read, replaced by who knows the last version, kept alive.

What it says is others' business. What was last seen of it is told again to a store that lost it.
"""

from proxy.store.fleet_scripts import POLICY
from proxy.store.link import Link


class Document:
    """One document in the store."""

    def __init__(self, link: Link, key: str, what: str, *, ttl_ms: int, max_bytes: int) -> None:
        """Nothing is read yet.

        Args:
            link: the way to the store.
            key: where it is.
            what: its name in messages.
            ttl_ms: how long it outlives the last proxy that touched it.
            max_bytes: it may be no larger.
        """
        self._link = link
        self._key = key
        self._what = what
        self._ttl_ms = ttl_ms
        self._max_bytes = max_bytes
        self._seen: tuple[int, bytes] | None = None

    async def read(self) -> tuple[int, bytes] | None:
        """Version and content; None: there is none.

        Raises:
            StoreDown: it cannot be read now.
        """
        version, content = await self._link.call(("HMGET", self._key, "version", "document"))
        if version is None or content is None:
            return None
        self._seen = (int(version), content)
        return self._seen

    async def replace(self, content: bytes, expected_version: int | None) -> int | None:
        """Replace it if its version is the expected one (None: if there is none). Returns the new version; None:
        somebody else was faster.

        Raises:
            StoreDown: whether it was replaced is not known.
            ValueError: it is too large.
        """
        if len(content) > self._max_bytes:
            raise ValueError(f"{self._what} of {len(content)} bytes, at most {self._max_bytes}")
        arguments = (content, self._ttl_ms, expected_version or 0, "after")
        version: int = await self._link.run(POLICY, (self._key,), arguments)
        if version < 0:
            known = await self.read()  # our own word, said again after a lost answer, is no refusal
            return known[0] if known == ((expected_version or 0) + 1, content) else None
        self._seen = (version, content)
        return version

    async def touch(self) -> None:
        """Have it live its whole time again.

        Raises:
            StoreDown: it could not be.
        """
        await self._link.call(("PEXPIRE", self._key, self._ttl_ms))

    def tell_again(self) -> None:
        """The store may have lost it."""
        if self._seen is not None:
            version, content = self._seen
            self._link.post(POLICY, (self._key,), (content, self._ttl_ms, version, "restore"))
