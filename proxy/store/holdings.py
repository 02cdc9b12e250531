"""What this proxy holds at each backend and what it last heard of the others. Knows no connection and no script.

It is the truth that is told to the store after trouble, and what claims are decided on while the store is gone.
"""

import zlib
from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec


class Stand(Enum):
    """Where a lease stands between this proxy and the store."""

    ASKED = "asked"  # a claim is under way: the store may or may not have it
    HELD = "held"
    GONE = "gone"  # given back or given up, but the store has not said yet that it knows


class Holding(msgspec.Struct):
    """Seats that one nonce takes."""

    seats: int
    epoch: int
    limit: int
    """The running limit that its claim named."""
    slot: int | None = None
    """The slot that it named."""
    stand: Stand = Stand.ASKED
    void: bool = False
    """The engine it ran on was restarted: it counts no more, but its owner still has to release it."""
    lost_told: bool = False
    gone_at_s: float = 0.0
    news: bytes = b""
    """What to tell the others once the store drops it."""
    over: bool = False
    """It ended while the store was away: the news is told whether the store still has it or not."""


class Seen(msgspec.Struct):
    """What the store last said of a backend."""

    elsewhere: int = 0
    mine: int = 0
    """Our seats, as the store counted them at the same moment."""
    draining: bool = False
    flag_missing: bool = False
    """The store has no word on draining: it never had, or it lost its data."""
    epoch: int | None = None
    limit: int | None = None
    limit_asked: int | None = None
    """The running limit that our last claim without the store named: where the store never said one."""
    at_s: float = float("-inf")
    """Time of the event loop."""


def fair_share(limit: int, proxies: int, rank: int, backend_id: str) -> int:
    """How many of `limit` seats are this proxy's while proxies cannot talk: an equal part, and one of the rest.

    Who gets the rest is shifted by the backend's name, so that it is not always the same proxy. Over all ranks the
    shares add up to the limit exactly.
    """
    equal, rest = divmod(limit, proxies)
    turn = (rank + zlib.crc32(backend_id.encode())) % proxies
    return equal + (1 if turn < rest else 0)


class Holdings:
    """Leases of this proxy by backend and nonce, and the last word of the store on each backend."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, Holding]] = {}
        self.seen: dict[str, Seen] = {}

    def ask(self, backend_id: str, nonce: str, seats: int, epoch: int, limit: int, slot: int | None = None) -> Holding:
        """A claim goes out. Said again for a nonce that is held, it changes nothing."""
        held = self._held.setdefault(backend_id, {})
        holding = held.get(nonce)
        if holding is None or holding.stand is Stand.GONE:
            holding = held[nonce] = Holding(seats, epoch, limit, slot)
        return holding

    def give_back(self, backend_id: str, nonce: str, now_s: float, news: bytes = b"", *, away: bool = False) -> bool:
        """Mark a lease or a claim as gone until the store has confirmed it (`forget`). False: it was not there.

        `away`: without the store; if it was held, its news is told in any case when the store is back.
        """
        holding = self.of(backend_id).get(nonce)
        if holding is None or holding.stand is Stand.GONE:
            return False
        holding.news, holding.over = news, away and holding.stand is Stand.HELD
        holding.stand, holding.gone_at_s = Stand.GONE, now_s
        return True

    def take(self, backend_id: str, nonce: str, holding: Holding) -> bool:
        """A claim was granted. False: it was given back meanwhile."""
        if holding.stand is Stand.GONE:
            return False
        self._held.setdefault(backend_id, {})[nonce] = holding  # another claim of the nonce may have been refused
        holding.stand = Stand.HELD
        return True

    def forget(self, backend_id: str, nonce: str, holding: Holding) -> None:
        """The store has no such lease any more. One that was claimed anew under its nonce stays."""
        held = self._held.get(backend_id, {})
        if held.get(nonce) is holding:
            del held[nonce]
        if not held:
            self._held.pop(backend_id, None)

    def of(self, backend_id: str) -> dict[str, Holding]:
        """Holdings at a backend by nonce; do not change it."""
        return self._held.get(backend_id, {})

    def seats(self, backend_id: str) -> int:
        """Seats held for certain at a backend."""
        return sum(one.seats for one in self.of(backend_id).values() if one.stand is Stand.HELD and not one.void)

    def seats_possible(self, backend_id: str) -> int:
        """Seats that the store can rightly have of us: held, asked for, or on their way back."""
        return sum(one.seats for one in self.of(backend_id).values() if not one.void)

    def backends(self) -> list[str]:
        """Backends at which the store may have something of ours, sorted."""
        return sorted(self._held)

    def hear(self, backend_id: str, now_s: float, reply: Sequence[int]) -> Seen:
        """Keep what a script said: total, mine, draining (-1: no word); from all but `occupancy` also epoch (-1: none)
        and limit.
        """
        seen = self.seen.setdefault(backend_id, Seen())
        seen.elsewhere, seen.mine, seen.flag_missing, seen.at_s = reply[0] - reply[1], reply[1], reply[2] < 0, now_s
        if not seen.flag_missing:
            seen.draining = reply[2] == 1
        if len(reply) > 3:
            seen.epoch = reply[3] if reply[3] >= 0 else None
            seen.limit = reply[4]
            self._void_older(backend_id, seen.epoch)
        return seen

    def others_part(self, backend_id: str, limit: int, *, share_of: int, rank: int, others_known: bool) -> int:
        """Of `limit` seats, those that are not this proxy's to take while proxies cannot talk.

        Each takes its share. While what is known of others is fresh (`others_known`), one of them may hold more than
        its share since before the trouble. With one other it is plain how much that one holds; of several only the sum
        is known, so each keeps to what it had and its share of what was free.
        """
        room = fair_share(limit, share_of, rank, backend_id)
        if others_known and (seen := self.seen.get(backend_id)) is not None:
            free = max(0, limit - seen.elsewhere - seen.mine)
            room = min(room, seen.mine + (free if share_of <= 2 else fair_share(free, share_of, rank, backend_id)))
        return limit - room

    def decide_alone(
        self,
        backend_id: str,
        nonce: str,
        holding: Holding,
        *,
        share_of: int,
        rank: int,
        others_known: bool,
        now_s: float,
        names: bool = False,
    ) -> tuple[bool, int, bool]:
        """Grant or refuse an asked claim without the store. Returns (granted, seats held here afterwards, refused only
        because of the slot).

        `share_of` proxies split the running limit, see `others_part`. No slot can be named while others may name the
        same without our hearing of it; `names`: we hear of it.
        """
        seen = self.seen.setdefault(backend_id, Seen())
        if seen.epoch is None or holding.epoch > seen.epoch:
            seen.epoch = holding.epoch
        self._void_older(backend_id, seen.epoch)
        seen.limit_asked = holding.limit
        mine = self.seats(backend_id)
        if holding.stand is Stand.HELD and not holding.void:
            return True, mine, False  # said again
        if holding.stand is Stand.GONE:
            return False, mine, False  # given back meanwhile
        limit = holding.limit if seen.limit is None else min(holding.limit, seen.limit)
        room = limit - self.others_part(backend_id, limit, share_of=share_of, rank=rank, others_known=others_known)
        if holding.void or seen.draining or (holding.seats > 0 and mine + holding.seats > room):
            self.give_back(backend_id, nonce, now_s)  # the lost claim may yet have been granted
            return False, mine, False
        blind = share_of > 1 and not names
        if holding.slot is not None and holding.seats > 0 and (blind or not self._may_name(backend_id, holding)):
            self.give_back(backend_id, nonce, now_s)
            return False, mine, True
        self.take(backend_id, nonce, holding)
        return True, mine + holding.seats, False

    def prune(self, keep: Iterable[str], *, seen_before_s: float, gone_before_s: float) -> None:
        """Forget backends that nobody has spoken of since a time, and what was given back so long ago that the store
        cannot have it any more.
        """
        for backend_id in self.backends():
            for nonce, holding in list(self.of(backend_id).items()):
                if holding.stand is Stand.GONE and holding.gone_at_s < gone_before_s:
                    self.forget(backend_id, nonce, holding)
        wanted = {*keep, *self._held}
        for backend_id in [name for name, seen in self.seen.items() if seen.at_s < seen_before_s]:
            if backend_id not in wanted:
                del self.seen[backend_id]

    def _may_name(self, backend_id: str, asked: Holding) -> bool:
        """Whether no lease of ours is at the slot that is asked for, or at one that nobody knows."""
        held = (one for one in self.of(backend_id).values() if one.stand is Stand.HELD and not one.void and one.seats)
        return all(one.slot is not None and one.slot != asked.slot for one in held)

    def _void_older(self, backend_id: str, epoch: int | None) -> None:
        for holding in self.of(backend_id).values():
            if epoch is not None and holding.epoch < epoch:
                holding.void = True
