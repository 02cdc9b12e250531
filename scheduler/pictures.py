"""Taking a picture of all that was learned, and going on from another proxy's. Owns what waits for its backend to join.

Busy slots are told as empty: who starts hears of what runs by news, and puts it there itself.
"""

from math import inf

from scheduler.domain import Backend
from scheduler.fairness import Shares
from scheduler.mirror import MOST_SLOTS, Mirror
from scheduler.outlook import Outlook
from scheduler.picture import MOST_BLOCKS, BackendPicture, MirrorPicture, Picture
from scheduler.replica import Replica

KEPT_S = 30.0
"""How long a picture of a backend waits for it to join: later on too much has changed."""


class Pictures:
    """Pictures taken and heard."""

    def __init__(self, outlook: Outlook, replica: Replica, shares: Shares) -> None:
        self._outlook = outlook
        self._replica = replica
        self._shares = shares
        self._waiting: dict[str, BackendPicture] = {}
        self._until_s = -inf

    def taken(self, now_s: float, tuned: dict[str, str | None]) -> Picture:
        """All that was learned until now; `tuned`: by which model each running limit was tuned."""
        estimates = self._outlook.estimates
        states = self._replica.states()
        mirrors = {state.backend.id: self._outlook.mirrors(state.backend.id) for state in states}
        since_s = _since_s([mirror for of_backend in mirrors.values() for mirror in of_backend.values()])
        backends = [
            BackendPicture(
                state.backend.id,
                state.backend.epoch,
                None if state.last_used_s == -inf else now_s - state.last_used_s,
                tuned.get(state.backend.id),
                tuple([each.picture(model, now_s, since_s) for model, each in mirrors[state.backend.id].items()]),
                estimates.pairs(state.backend.id, now_s),
                self._outlook.slot_shares.picture(state.backend.id),
                self._outlook.load_times.picture(state.backend.id),
            )
            for state in states
        ]
        return Picture(
            tuple(backends),
            self._outlook.returns.picture(),
            estimates.answers(),
            estimates.ratios(),
            self._shares.picture(),
        )

    def heard(self, picture: Picture, now_s: float) -> list[BackendPicture]:
        """Go on from what another proxy learned; returns what could be restored at once.

        What was done here before is overwritten: it is for a proxy that has done nothing yet.
        """
        self._outlook.estimates.restore(picture)
        self._shares.restore(picture.shares)
        if picture.returns is not None:
            self._outlook.returns.restore(picture.returns)
        self._waiting = {told.backend_id: told for told in picture.backends}
        self._until_s = now_s + KEPT_S
        here = [state.backend for state in self._replica.states()]
        return [told for backend in here if (told := self.joined(backend, now_s)) is not None]

    def joined(self, backend: Backend, now_s: float) -> BackendPicture | None:
        """A backend is there, and nothing was done with it: restore what is known of it. None: nothing is."""
        if now_s > self._until_s:
            self._waiting.clear()
        told = self._waiting.pop(backend.id, None)
        state = self._replica.get(backend.id)
        if told is None or state is None or told.epoch != backend.epoch:
            return None
        state.last_used_s = -inf if told.used_s_ago is None else now_s - told.used_s_ago
        for picture in told.mirrors:
            if _fits(picture, backend):
                self._outlook.mirror(backend, picture.model or None).restore(picture, now_s)
        self._outlook.slot_shares.restore(backend.id, told.tenants)
        self._outlook.load_times.restore(backend.id, told.load_times)
        self._outlook.estimates.restore_pairs(backend.id, told.pairs, now_s)
        self._replica.touch(backend.id)
        return told


def _fits(picture: MirrorPicture, backend: Backend) -> bool:
    return len(picture.held) == len(picture.used_s_ago) == min(backend.slots, MOST_SLOTS)


def _since_s(mirrors: list[Mirror]) -> float:
    """From when on slots are told, so that the picture stays within its bound; -inf: all are, and host caches too."""
    slots = sorted([entry for mirror in mirrors for entry in mirror.sizes()], reverse=True)
    if sum(size for _, size in slots) + sum(mirror.host_blocks() for mirror in mirrors) <= MOST_BLOCKS:
        return -inf
    since_s, blocks = inf, 0
    for used_s, size in slots:
        blocks += size
        if blocks > MOST_BLOCKS:
            break
        since_s = used_s
    return since_s
