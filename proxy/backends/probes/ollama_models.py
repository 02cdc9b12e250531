"""Owns what /api/show tells of an Ollama's models, asked once per digest, and the contexts that follow from it."""

import re
import time
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import Any

import msgspec

from proxy.backends.control import Control, ProbeError
from proxy.backends.ollama_children import blob
from scheduler.names import canonical

SHOW_S = 2.0
"""Seconds that one reading of the list may spend on asking for models that are new; the rest come with the next."""
VISION_CONTEXT = 2048
"""Least context of a model that sees. Source: Ollama 0.33, server/sched.go."""
_MOST_LEARNED = 1000


class Shown(msgspec.Struct, frozen=True):
    """What /api/show told of one digest."""

    weights: str = ""
    """Digest of the blob that is loaded, hex; empty: it has none."""
    context_tokens: int | None = None
    """Context that its Modelfile asks for."""
    trained_context: int = 0
    """0: not told."""
    architecture: str = ""
    capabilities: tuple[str, ...] | None = None
    """In Ollama's words; None: this version does not tell."""


class Answer(msgspec.Struct):
    """The part of an answer of /api/show that is read."""

    modelfile: str = ""
    parameters: str = ""
    model_info: dict[str, Any] = {}
    capabilities: list[str] | None = None


NOTHING = Shown()


def parse_show(answer: Answer) -> Shown:
    """The part that slotgate needs."""
    info = answer.model_info
    architecture = str(info.get("general.architecture") or "")
    trained = info.get(f"{architecture}.context_length")
    asked = re.search(r"^num_ctx\s+(\d{1,9})\s*$", answer.parameters, re.MULTILINE)
    return Shown(
        weights=_weights(answer.modelfile),
        context_tokens=int(asked[1]) if asked else None,
        trained_context=trained if isinstance(trained, int) else 0,
        architecture=architecture,
        capabilities=None if answer.capabilities is None else tuple(answer.capabilities),
    )


def _weights(modelfile: str) -> str:
    """The first FROM is what is loaded; further ones are projectors."""
    for line in modelfile.splitlines():
        if line.upper().startswith("FROM ") and (found := blob(PurePosixPath(line[5:].strip()).name)):
            return found
    return ""


def default_context(shown: Shown, engine: int | None, trained: int, *, sees: bool) -> int | None:
    """Context of one slot that a model gets where a request does not say, in tokens; None: not known.

    Args:
        shown: what its Modelfile says.
        engine: the engine's own default.
        trained: what it was trained for, which is the most; 0: not known.
        sees: it takes images.
    """
    wanted = shown.context_tokens or engine
    if wanted is None:
        return None
    if sees:
        wanted = max(wanted, VISION_CONTEXT)
    return min(wanted, trained) if trained else wanted


class Shows:
    """Remembers what was shown of the models that are listed."""

    def __init__(self, control: Control, clock: Callable[[], float] = time.monotonic) -> None:
        self._control = control
        self._clock = clock
        self._known: dict[str, Shown] = {}

    def of(self, digest: str) -> Shown | None:
        """What is known of a digest; None: it was not asked for yet."""
        return self._known.get(digest)

    async def learn(self, names: dict[str, str], first: Iterable[str] = (), loaded: Iterable[str] = ()) -> None:
        """Ask for what is new, one after the other, for `SHOW_S` at most; forget what is not there any more.

        Args:
            names: digest -> a name that it can be asked for by.
            first: digests that are wanted most.
            loaded: digests in memory, which may have been deleted or replaced since.
        """
        kept = {*names, *loaded}
        self._known = {digest: shown for digest, shown in self._known.items() if digest in kept}
        wanted = [digest for digest in first if digest in names]
        until_s = self._clock() + SHOW_S
        for digest in dict.fromkeys([*wanted, *names]):
            if digest in self._known:
                continue
            left_s = until_s - self._clock()
            if left_s <= 0:
                return
            try:
                answer = await self._control.post("/api/show", {"model": names[digest]}, timeout_s=left_s)
                # what it cannot show now, such as a broken model, it is not asked for again and again
                self._known[digest] = parse_show(answer.json(Answer)) if answer.status == 200 else NOTHING
            except ProbeError:
                return  # busy: with the next list


class Learned:
    """Default contexts of an engine that does not tell its own: seen at models that were loaded without saying one."""

    def __init__(self) -> None:
        self._expected: set[str] = set()
        self._contexts: dict[str, int] = {}
        self._engine = 0

    @property
    def expected(self) -> frozenset[str]:
        """Models of which a look that begins now may teach the default."""
        return frozenset(self._expected)

    def expect(self, model: str) -> None:
        """A model was just loaded by a request that said no context."""
        if len(self._expected) < _MOST_LEARNED:
            self._expected.add(canonical(model))

    def see(self, model: str, context: int | None, shown: Shown, trained: int) -> bool:
        """A model is loaded, with this context of one slot; returns whether that taught anything.

        Nothing is learned from one whose Modelfile says a context; and less than it was trained for is what the engine
        gives to all.
        """
        if context is None or model not in self._expected:
            return False
        self._expected.discard(model)
        before = self._contexts.get(model), self._engine
        if shown.context_tokens is None and len(self._contexts) < _MOST_LEARNED:
            self._contexts[model] = context
            if trained and context < trained:
                self._engine = max(self._engine, context)
        return before != (self._contexts.get(model), self._engine)

    def context(self, model: str) -> int | None:
        """The engine's default for a model; None: not known."""
        return self._contexts.get(model) or self._engine or None

    def clear(self) -> None:
        """Another engine runs."""
        self._expected.clear()
        self._contexts.clear()
        self._engine = 0
