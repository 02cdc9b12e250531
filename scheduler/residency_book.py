"""What is loaded at one backend: as looks show it, and as loads and unloads of our own change it in between.

A look takes time: one that began before a load ended knows nothing of it, one that began later is the truth. And a look
does not tell with which options a model was asked for, which is what the engine compares; that is remembered from the
load for as long as the model stays as it was then.
"""

from collections.abc import Iterable
from math import inf

import msgspec

from scheduler.domain import Backend, Report, Residency
from scheduler.residencies import without
from scheduler.runner import Runner, shares

UNLOAD_S = 5.0
"""By then an engine has ended a model's process on which nothing ran. Looks that began earlier may still show it."""
MOST_S = 600.0
"""How long it is believed that an engine holds no more models than when a load made another one go: which of them are
large, and what others use of the card's memory, changes."""


class _Asked(msgspec.Struct):
    """With what a model was loaded."""

    runner: Runner
    context_tokens: int | None = None
    """As the first look after the load showed it; None: none came yet. With another one it was loaded anew since."""


class ResidencyBook:
    """The residencies of one backend."""

    def __init__(self) -> None:
        self.residencies: tuple[Residency, ...] = ()
        self.told = False
        """A look came since the engine started."""
        self.most = 0
        """Models that the engine holds at once, as loads showed that it unloaded others for; 0: nothing of the kind."""
        self._most_until_s = -inf
        self._since_s: dict[str, float] = {}
        self._asked: dict[str, _Asked] = {}
        self._loaded_s: dict[str, float] = {}
        """When loads ended that no look has confirmed yet."""
        self._leaves_by_s: dict[str, float] = {}
        """Looks that began by then may still show these models."""

    @property
    def kinds(self) -> frozenset[tuple[str, int | None, Runner | None]]:
        """What requests can run on: models with context and options."""
        return frozenset([(one.model, one.context_tokens, one.asked or one.runner) for one in self.residencies])

    def since_s(self, model: str) -> float:
        """Since when a model is known to be loaded; -inf: since the first look, or it is not loaded."""
        return self._since_s.get(model, -inf)

    def reported(self, report: Report, backend: Backend, now_s: float, *, loading: bool = False) -> None:
        """A look came back; it is the latest one accepted. `loading`: a load is under way there."""
        at_s = report.asked_at_s
        new = frozenset(self._loaded_s)
        was_loaded = loading or any(at_s > ended_s for ended_s in self._loaded_s.values())
        self._leaves_by_s = {model: by_s for model, by_s in self._leaves_by_s.items() if at_s <= by_s}
        self._loaded_s = {model: ended_s for model, ended_s in self._loaded_s.items() if at_s <= ended_s}
        kept = [residency for residency in self.residencies if residency.model in self._loaded_s]
        seen = [residency for residency in report.residencies if residency.model not in self._leaves_by_s]
        for residency in kept:
            seen = without(seen, residency.model, backend)
        residencies = [*(self._as_asked(residency, backend) for residency in seen), *kept]
        self._asked = {
            model: asked
            for model, asked in self._asked.items()
            if any(one.asked is asked.runner and shares(model, one, backend) for one in residencies)
        }
        made_way = was_loaded and any(
            one.model not in new and not any(shares(one.model, other, backend) for other in residencies)
            for one in self.residencies
        )
        if made_way:
            self.most, self._most_until_s = max(1, len(residencies) + loading), now_s + MOST_S
        elif len(residencies) > self.most or now_s >= self._most_until_s:
            self.most = 0
        first_s = now_s if self.told else -inf
        self._since_s = {one.model: self._since_s.get(one.model, first_s) for one in residencies}
        self.residencies = tuple(residencies)
        self.told = True

    def loaded(self, residency: Residency, backend: Backend, now_s: float) -> None:
        """A load ended well: the model is there at once, in place of what was loaded from the same weights."""
        self.residencies = (*without(self.residencies, residency.model, backend), residency)
        self._asked = {model: asked for model, asked in self._asked.items() if not shares(model, residency, backend)}
        if residency.asked is not None:
            self._asked[residency.model] = _Asked(residency.asked)
        self._since_s[residency.model] = self._loaded_s[residency.model] = now_s
        self._leaves_by_s.pop(residency.model, None)
        self._keep_times()

    def unloaded(self, models: Iterable[str], now_s: float, leaves_s: float = UNLOAD_S) -> None:
        """These models (their own names) count as gone; looks that begin within `leaves_s` may still show them."""
        for model in models:
            self._leaves_by_s[model] = now_s + leaves_s
            self._loaded_s.pop(model, None)
            self._asked.pop(model, None)
        self.residencies = tuple([one for one in self.residencies if one.model not in self._leaves_by_s])
        self._keep_times()

    def clear(self) -> None:
        """Another engine process: nothing is loaded, as far as is known."""
        self.residencies = ()
        self.told = False
        self.most = 0
        for known in (self._since_s, self._asked, self._loaded_s, self._leaves_by_s):
            known.clear()

    def _as_asked(self, residency: Residency, backend: Backend) -> Residency:
        """As it was asked for, if it still is what it was then."""
        for model, asked in self._asked.items():
            if not shares(model, residency, backend):
                continue
            if asked.context_tokens is None:
                asked.context_tokens = residency.context_tokens
            if asked.context_tokens == residency.context_tokens:
                return msgspec.structs.replace(residency, asked=asked.runner)
        return residency

    def _keep_times(self) -> None:
        there = {residency.model for residency in self.residencies}
        self._since_s = {model: since_s for model, since_s in self._since_s.items() if model in there}
