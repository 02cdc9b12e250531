"""How long loading a model takes, learned from loads that were seen. Owns the numbers, decides nothing."""

from collections import OrderedDict

from scheduler.learning import Mean, keep
from scheduler.picture import MeanPicture

KEPT = 512
"""(model, backend) pairs, and models, that are remembered: the latest."""
LEAST_MS, MOST_MS = 1.0, 3_600_000.0
"""What is measured outside of this is passed over."""


class LoadTimes:
    """Of each model on each backend. Reads never fail: what is unknown is as elsewhere, or as the policy says."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[tuple[str, str], Mean] = OrderedDict()
        self._models: OrderedDict[str, Mean] = OrderedDict()

    def ms(self, backend_id: str, model: str, prior_ms: float) -> float:
        """Milliseconds that a load is expected to take; `prior_ms`: where none of this model was seen anywhere."""
        known = self._pairs.get((backend_id, model)) or self._models.get(model)
        return known.value if known is not None else prior_ms

    def learn(self, backend_id: str, model: str, took_ms: float) -> None:
        """A load took so long."""
        if not LEAST_MS <= took_ms <= MOST_MS:
            return
        here = self._pairs.get((backend_id, model)) or Mean(took_ms)
        anywhere = self._models.get(model) or Mean(took_ms)
        here.learn(took_ms)
        anywhere.learn(took_ms)
        keep(self._pairs, (backend_id, model), here, KEPT)
        keep(self._models, model, anywhere, KEPT)

    def forget(self, backend_id: str) -> None:
        """A backend is gone for good."""
        for key in [key for key in self._pairs if key[0] == backend_id]:
            del self._pairs[key]

    def picture(self, backend_id: str) -> tuple[tuple[str, MeanPicture], ...]:
        """By model, for another proxy."""
        return tuple([(key[1], mean.picture()) for key, mean in self._pairs.items() if key[0] == backend_id])

    def restore(self, backend_id: str, told: tuple[tuple[str, MeanPicture], ...]) -> None:
        """Go on from where another proxy is."""
        for model, picture in told:
            keep(self._pairs, (backend_id, model), Mean(picture.value).restore(picture), KEPT)
            if model not in self._models:
                keep(self._models, model, Mean(picture.value).restore(picture), KEPT)
