"""Where a router without a mirror believes a prefix to be: everywhere it ever sent it. As those routers really have it.

Knows the places between messages only, which is exact for prompts whose messages are equal or have nothing in common.
"""

from math import inf

from scheduler.simulation.contents import Chain


class ApproximateTree:
    """Which backends got which beginnings, and when last.

    Args:
        lifetime_ms: an entry that nobody used for so long is forgotten; infinity: never.
    """

    def __init__(self, lifetime_ms: float = inf) -> None:
        self._lifetime_ms = lifetime_ms
        self._seen: dict[int, dict[int, float]] = {}
        """Hash of a beginning -> backend -> time of last use."""

    def insert(self, prompt: Chain, backend: int, now_ms: float) -> None:
        """A prompt was sent to a backend."""
        for beginning in prompt.hashes:
            self._seen.setdefault(beginning, {})[backend] = now_ms

    def matches(self, prompt: Chain, backends: int, now_ms: float) -> list[int]:
        """Tokens that each of so many backends is believed to have."""
        found = [0] * backends
        missing = backends
        for place in range(len(prompt.hashes) - 1, -1, -1):
            for backend, used_ms in self._seen.get(prompt.hashes[place], {}).items():
                if not found[backend] and now_ms - used_ms <= self._lifetime_ms:
                    found[backend] = min(prompt.ends[place], prompt.tokens)
                    missing -= 1
            if not missing:
                break
        return found

    def deepest(self, prompt: Chain) -> tuple[int, int | None]:
        """Tokens of the longest known beginning, and the backend that got it last; (0, None): nothing is known."""
        for place in range(len(prompt.hashes) - 1, -1, -1):
            users = self._seen.get(prompt.hashes[place])
            if users:
                return min(prompt.ends[place], prompt.tokens), max(users, key=lambda backend: users[backend])
        return 0, None
