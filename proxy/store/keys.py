"""Names of all keys of a fleet and how long each may live. The only place where a key is spelled.

All share one hash tag, so that in a cluster they live on one node and a script may touch several.
"""

import re

FLEET_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

DRAINING_TTL_MS = 7 * 24 * 3_600_000
"""The draining flag outlives every proxy that knows the backend by a week: longer than any maintenance, yet bounded."""

RECORD_TTL_MIN_MS = 60_000
RECORD_LEASE_TTLS = 4
"""A backend's record lives this many lease times after its last heartbeat. It must outlive every lease, since it holds
the epoch that fences them."""

LOG_MAX_ENTRIES = 10_000
"""About; whole nodes of the stream are trimmed. A minute of a busy fleet: a reader that was away longer asks anew."""
LOG_TTL_MS = 3_600_000
"""The log and the life of the store outlive the last proxy by this."""
PICTURE_TTL_MS = 3_600_000
PICTURE_MAX_BYTES = 8 * 1024 * 1024
POLICY_TTL_MS = 90 * 24 * 3_600_000
"""The policy document outlives the last proxy by this."""
POLICY_MAX_BYTES = 1024 * 1024
PINS_TTL_MS = 90 * 24 * 3_600_000
"""The list of pinned models outlives the last proxy by this."""
PINS_MAX_BYTES = 1024 * 1024


class Keys:
    """Key names of one fleet."""

    def __init__(self, fleet: str) -> None:
        """Check the name of the fleet.

        Raises:
            ValueError: the name cannot go into a hash tag.
        """
        if not FLEET_NAME.fullmatch(fleet):
            raise ValueError(f"fleet {fleet!r}: use 1 to 64 letters, digits, dots, dashes or underscores")
        self.tag = f"{{slotgate:{fleet}}}"
        self.proxies = f"{self.tag}:proxies"
        self.backends = f"{self.tag}:backends"
        self.life = f"{self.tag}:life"
        """Random name of the data in the store: another one means that it was lost."""
        self.log = f"{self.tag}:log"
        self.log_count = f"{self.tag}:log-count"
        """Number of the last entry of the log."""
        self.picture = f"{self.tag}:picture"
        self.policy = f"{self.tag}:policy"
        self.pins = f"{self.tag}:pins"

    def leases(self, backend_id: str) -> str:
        """Sorted set of seats taken at a backend."""
        return f"{self.tag}:leases:{backend_id}"

    def slots(self, backend_id: str) -> str:
        """Hash of the slots that leases named, with the lease at each."""
        return f"{self.tag}:slots:{backend_id}"

    def backend(self, backend_id: str) -> str:
        """Hash with the epoch, the limit and the facts of a backend."""
        return f"{self.tag}:backend:{backend_id}"

    def draining(self, backend_id: str) -> str:
        """`1` while a backend gets no new work, `0` after that was lifted."""
        return f"{self.tag}:draining:{backend_id}"

    def lock(self, name: str) -> str:
        """Hash with the holder of a named lock and what it says of itself."""
        return f"{self.tag}:lock:{name}"

    def of_backend(self, backend_id: str) -> tuple[str, str, str]:
        """Leases, record and draining flag: what most scripts begin with."""
        return self.leases(backend_id), self.backend(backend_id), self.draining(backend_id)


def record_ttl_ms(lease_ttl_ms: int) -> int:
    """How long a backend's record lives after its last heartbeat, in ms."""
    return max(RECORD_TTL_MIN_MS, RECORD_LEASE_TTLS * lease_ttl_ms)
