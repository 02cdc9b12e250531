"""The admin API's shapes about loaded models: what is where, loading, unloading, pins. Owns shapes only, like
`admin_api`.
"""

import msgspec

LOAD = "/load"
UNLOAD = "/unload"
PIN = "/pin"
UNPIN = "/unpin"


def load_path(load_id: str) -> str:
    """GET: how far a load is that was asked for. Answered by `LoadAnswer`, or 404 and `ErrorAnswer`."""
    return f"{LOAD}/{load_id}"


class ModelWish(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /load, /unload, /pin and /unpin."""

    model: str
    backend: str | None = None
    """None: where it suits best (load), everywhere it is (unload, unpin), on one backend at least (pin)."""
    num_ctx: int | None = None
    """Context of one slot, in tokens, for load and pin; None: as configured, else the engine's default."""


class LoadAnswer(msgspec.Struct):
    """POST /load, which begins it, and GET /load/ID."""

    id: str
    model: str
    state: str
    """loading, waiting (it could not begin yet), loaded or failed."""
    backend: str | None = None
    """Where it is, or is being, loaded."""
    context_tokens: int | None = None
    """Of one slot, once it is loaded."""
    took_ms: float | None = None
    """What the load took; None where it was loaded already, or another proxy loaded it."""
    detail: str = ""
    """Why it waits or failed, in the engine's words where it has some."""
    waited_s: float = 0.0
    """Since it was asked for."""


class UnloadAnswer(msgspec.Struct):
    """POST /unload: engines were told; each unloads the model as soon as nothing runs on it."""

    model: str
    backends: list[str]
    """That had it loaded; one that cannot be told is in the log."""


class PinnedPlace(msgspec.Struct):
    """A pin."""

    model: str
    backend: str | None = None
    """None: on one backend at least, whichever."""
    context_tokens: int | None = None
    """Context that it is loaded with; None: the engine's default."""
    configured: bool = False
    """By the configuration file (residency.models): it cannot be unpinned otherwise."""


class PinAnswer(msgspec.Struct):
    """POST /pin and /unpin."""

    model: str
    pins: list[PinnedPlace]
    """Of this model, now."""
    removed: list[PinnedPlace] = []
    """By unpin."""
    loaded_on: list[str] = []
    """Backends that have it loaded now; by pin: as it is pinned."""


class ResidentModel(msgspec.Struct):
    """A model that a backend has loaded, is loading, or is about to unload."""

    name: str
    state: str = "loaded"
    """loaded, loading, or leaving (it gets nothing new and is unloaded once nothing runs on it)."""
    context_tokens: int | None = None
    """Of one slot."""
    pinned: bool = False
