"""Which model stores there are, and which backends write to each. Pure: what is known of backends in, groups out.

Backends are grouped by what they told of their directory, or by an operator's word, never because they have the same
models: two directories can have the same models in them, and one directory must have one writer.
"""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec


class Holder(msgspec.Struct, frozen=True):
    """An Ollama as far as its models on disk are concerned."""

    backend_id: str
    store_id: str
    """Its name in the whole fleet."""
    directory: str = ""
    """`EngineFacts.model_store`: the same for all that share a directory; empty: not known, so its own."""
    is_here: bool = False
    """It runs on this host, so it may write to the same directory as others here."""


class ModelStore(msgspec.Struct, frozen=True):
    """One directory of models."""

    id: str
    """The same at all proxies, and fit for a key."""
    backends: tuple[str, ...]
    """All that use it, in the same order at all proxies, so that changes of different proxies meet at one Ollama."""
    is_guessed: bool = False
    """Its one backend runs on this host, and nobody told which directory it has."""

    @property
    def shown(self) -> str:
        """For people: the backends."""
        return ", ".join(sorted(self.backends))


def model_stores(holders: Iterable[Holder]) -> tuple[ModelStore, ...]:
    """All model stores, ordered by their first backend."""
    groups: dict[str, list[Holder]] = {}
    for holder in sorted(holders, key=lambda each: each.store_id):
        groups.setdefault(holder.directory or f"backend:{holder.store_id}", []).append(holder)
    return tuple(
        ModelStore(
            id=hashlib.sha256(directory.encode()).hexdigest()[:16],
            backends=tuple(each.backend_id for each in group),
            is_guessed=group[0].is_here and not group[0].directory,
        )
        for directory, group in groups.items()
    )


def doubtful(stores: Iterable[ModelStore]) -> tuple[str, ...]:
    """Backends that count as having a directory each, but may share one: two of them or more, or none."""
    guessed = sorted(name for store in stores if store.is_guessed for name in store.backends)
    return tuple(guessed) if len(guessed) > 1 else ()


def doubt(backends: Sequence[str]) -> str:
    """What to do about those, for people."""
    return f'if {", ".join(backends)} share a directory, set store = "NAME" in their [[backends]]'
