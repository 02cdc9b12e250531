"""Models that are not the same on all backends although they have one name: found, told, and which one is shown.

A name means what most backends have; among equals what was changed last; then what the first backend has. Only Ollamas
are compared: the digest of a llama-server's model is made up here.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import structlog

from proxy.dialects.facts import EngineFacts, ModelFacts
from proxy.dialects.times import unix_seconds
from proxy.model_store.grouping import doubt
from scheduler.domain import Engine
from scheduler.names import canonical, short

log = structlog.get_logger("slotgate.model-store")

Facts = Iterable[tuple[str, EngineFacts]]
"""Backends by name, in the order that counts among equals, with what they told."""
Conflicts = dict[str, dict[str, str]]
"""By canonical name of a model: its digests by backend."""
_SHOWN_DIGITS = 12


def chosen(copies: Sequence[ModelFacts]) -> ModelFacts:
    """The copy of a model that a list shows."""
    counts = Counter(copy.digest for copy in copies)
    return max(copies, key=lambda copy: (counts[copy.digest], unix_seconds(copy.modified_at) or 0.0))


def conflicts(backends: Facts) -> Conflicts:
    """Models whose digests differ."""
    digests: Conflicts = defaultdict(dict)
    for backend_id, facts in backends:
        if facts.engine is Engine.OLLAMA:
            for model in facts.models:
                if model.digest:
                    digests[canonical(model.name)][backend_id] = model.digest
    return {name: found for name, found in digests.items() if len(set(found.values())) > 1}


def warning(model: str, digests: Mapping[str, str]) -> str:
    """One line for an operator."""
    places: dict[str, list[str]] = defaultdict(list)
    for backend_id, digest in digests.items():
        places[digest.removeprefix("sha256:")[:_SHOWN_DIGITS]].append(backend_id)
    told = "; ".join(f"{digest} on {', '.join(names)}" for digest, names in places.items())
    return f"{short(model)} is not the same on all backends: {told}. `slotgate pull {short(model)}` makes it so"


class ConflictLog:
    """Says each conflict once, until it is another one."""

    def __init__(self) -> None:
        self._told: Conflicts = {}

    def see(self, found: Conflicts) -> None:
        """Log what is new."""
        for model, digests in found.items():
            if self._told.get(model) != digests:
                log.warning("a model differs between backends", model=short(model), digests=digests)
        self._told = {model: dict(digests) for model, digests in found.items()}


class DoubtLog:
    """Says once which backends may share a directory without our knowing it, until these are others."""

    def __init__(self) -> None:
        self._told: tuple[str, ...] = ()

    def see(self, backends: tuple[str, ...]) -> None:
        """Log what is new."""
        if backends and backends != self._told:
            log.warning("not known whether model stores are one", backends=backends, fix=doubt(backends))
        self._told = backends
