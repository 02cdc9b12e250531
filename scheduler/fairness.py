"""Shares of tenants: deficit round robin by tokens, within a priority. Knows nothing of queues, costs or backends.

Each tenant may use a quantum of weighted tokens; who has used it up waits until all that wait have, then all get
another one. What a request will use is charged when it is sent and settled when it ends. (Shreedhar and Varghese, 1995;
for language models with prefix caches: DLPM, arXiv 2501.14312.)
"""

from collections import OrderedDict
from collections.abc import Collection
from math import ceil

KEPT = 10_000
"""Tenants that are remembered, the latest; one that is forgotten begins anew with a whole quantum."""


class Shares:
    """What each tenant may still use, and how many of its requests run."""

    def __init__(self) -> None:
        self._left: OrderedDict[tuple[int, str], float] = OrderedDict()
        self._running: dict[str, int] = {}

    def eligible(self, rank: int, tenants: Collection[str], quantum: float) -> Collection[str]:
        """Those of the waiting tenants of one priority whose turn it is: never none, unless there is none.

        Args:
            rank: of the priority.
            tenants: that have a request which could run now. With a single one there is nothing to share (`alone`).
            quantum: weighted tokens per turn; 0: everybody's turn, always.
        """
        if quantum <= 0:
            return tenants
        if len(tenants) < 2:
            return tenants
        left = {tenant: self.left(rank, tenant, quantum) for tenant in tenants}
        most = max(left.values())
        if most <= 0:
            turns = ceil(-most / quantum) or 1
            if most + turns * quantum <= 0:
                turns += 1
            for tenant in tenants:
                left[tenant] = min(quantum, left[tenant] + turns * quantum)
                self._left[rank, tenant] = left[tenant]
        return [tenant for tenant, tokens in left.items() if tokens > 0]

    def left(self, rank: int, tenant: str, quantum: float) -> float:
        """Weighted tokens that a tenant may use before others' turn; negative: it used more than its share."""
        key = (rank, tenant)
        tokens = self._left.get(key)
        if tokens is None:
            tokens = self._left[key] = quantum
            if len(self._left) > KEPT:
                self._left.popitem(last=False)
        else:
            self._left.move_to_end(key)
        return tokens

    def alone(self, rank: int, tenant: str, quantum: float, *, others: bool) -> None:
        """Nobody else can use the seat that this tenant gets next: what it used before is no debt any more.

        Unless `others` of this priority wait too, for seats elsewhere: what it owes them stays.
        """
        if quantum > 0 and not others and self.left(rank, tenant, quantum) <= 0:
            self._left[rank, tenant] = quantum

    def charge(self, rank: int, tenant: str, tokens: float, quantum: float) -> None:
        """A tenant uses so much; negative: it used less than it was charged for."""
        if quantum > 0:
            left = self.left(rank, tenant, quantum)
            self._left[rank, tenant] = min(quantum, left - tokens)

    def picture(self) -> tuple[tuple[int, str, float], ...]:
        """(rank, tenant, weighted tokens left) of each tenant that is remembered, for another proxy."""
        return tuple([(rank, tenant, left) for (rank, tenant), left in self._left.items()])

    def restore(self, told: tuple[tuple[int, str, float], ...]) -> None:
        """Go on from where another proxy is."""
        self._left = OrderedDict(((rank, tenant), left) for rank, tenant, left in told[-KEPT:])

    def began(self, tenant: str) -> None:
        """A request of this tenant gets a seat."""
        self._running[tenant] = self._running.get(tenant, 0) + 1

    def ended(self, tenant: str) -> None:
        """It has none any more."""
        running = self._running.get(tenant, 0) - 1
        if running > 0:
            self._running[tenant] = running
        else:
            self._running.pop(tenant, None)

    def running(self, tenant: str) -> int:
        """Requests of this tenant that have seats, or are claiming them."""
        return self._running.get(tenant, 0)
