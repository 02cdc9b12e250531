"""Owns the words of an Ollama request by which a model is loaded, or unloaded: reading them, and saying others.

Ollama loads a model anew for a request whose load options differ from those that it is loaded with, so a request is
told those of the residency that it runs on. Everything else in the body stays as the client wrote it, byte for byte.
Must not know residencies, nor who may unload what.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from proxy.dialects.goduration import keep_alive_s
from proxy.dialects.gojson import folded_key, mended
from proxy.dialects.splice import splice
from scheduler.runner import Runner

LOAD_OPTIONS: Final = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "draft_num_predict")
"""Entries of `options` that make Ollama load a model anew. Source: Ollama 0.33, api/types.go:588-596, `Runner`."""

_MOST: Final = 2**31 - 1
"""No engine takes larger numbers, and what is told to other proxies must fit 64 bits."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_object_or_null = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode
_encode = msgspec.json.Encoder().encode

FOR_EVER: Final = -1
"""As a `keep_alive`."""


class Residing(msgspec.Struct, frozen=True):
    """How the model is loaded that a request goes to."""

    runner: Runner | None = None
    """The options that it is loaded with; None: nothing is to be said of them."""
    default_context: int | None = None
    """Context of one slot that the engine gives where a request does not say; None: not known."""
    most_context: int | None = None
    """The engine gives no more; None: not known."""
    stays: bool = False
    """It shall stay loaded whatever a client says."""


def asked_runner(fields: Mapping[str, Any]) -> Runner:
    """The options that a checked Ollama request wants its model loaded with, as Ollama reads them: numbers lose their
    fraction (`2048.0` is 2048), null is not said, names of options count letter for letter.
    """
    options = fields.get("options") or {}
    said = {name: _as_read(value) for name in LOAD_OPTIONS if (value := options.get(name)) is not None}
    return Runner(**said, shift=fields.get("shift"))


def option_changes(options: Mapping[str, Any], residing: Residing) -> dict[str, int | bool | None]:
    """What has to be said of load options so that the request runs on the residency: None means left out.

    Empty where Ollama would not load the model anew for what the client said.
    """
    runner = residing.runner
    if runner is None:
        return {}
    changes: dict[str, int | bool | None] = {}
    for name in LOAD_OPTIONS:
        said, wanted = _as_read(options.get(name)), getattr(runner, name)
        if name == "num_ctx":
            told = residing.default_context if said is None else said
            if wanted is None and said is not None and _given(said, residing) != residing.default_context:
                changes[name] = None
            elif wanted is not None and (told is None or _given(told, residing) != _given(wanted, residing)):
                changes[name] = wanted
        elif wanted is None and said is not None and not (name == "num_gpu" and said < 0):
            changes[name] = None
        elif wanted is not None and said != wanted:
            changes[name] = wanted
    return changes


def reworded(body: bytes, fields: Mapping[str, Any], residing: Residing) -> bytes:
    """The body of an Ollama request as the engine shall get it; untouched where nothing has to change.

    Args:
        body: a JSON object.
        fields: what is in it, keys in lower case.
        residing: how its model is loaded.
    """
    changes = option_changes(fields.get("options") or {}, residing)
    asked_s = keep_alive_s(fields.get("keep_alive"))
    keep = residing.stays and asked_s is not None and asked_s >= 0
    if not changes and not keep:
        return body
    if "options" not in fields and not keep:
        return splice(body, {"options": changes})
    top = _top(body)
    if changes:
        key = _only(top, "options")
        options: dict[str, Any] = (_object_or_null(top[key]) if key in top else None) or {}
        for name, value in changes.items():
            if value is None:
                options.pop(name, None)
            else:
                options[name] = value
        top[key] = msgspec.Raw(_encode(options))
    if keep:
        top[_only(top, "keep_alive")] = msgspec.Raw(_encode(FOR_EVER))
    return _encode(top)


def without_keep_alive(body: bytes) -> bytes:
    """The body of an Ollama request that says nothing of how long its model stays loaded."""
    return _encode({key: value for key, value in _top(body).items() if folded_key(key) != "keep_alive"})


def keep_alive_word(seconds: float) -> int | str:
    """A time to stay loaded as Ollama takes it: a fraction of a second in a number would be dropped."""
    if seconds < 0:
        return FOR_EVER
    return int(seconds) if seconds == int(seconds) else f"{seconds}s"


def _as_read(value: object) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return int(max(-_MOST, min(value, _MOST)))


def _given(context: int, residing: Residing) -> int:
    """The context that the engine really gives."""
    return context if residing.most_context is None else min(context, residing.most_context)


def _top(body: bytes) -> dict[str, msgspec.Raw]:
    """The body's keys and the bytes of their values, in the client's order."""
    try:
        return _object(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _object(mended(body))


def _only(top: dict[str, msgspec.Raw], name: str) -> str:
    """The key by which Ollama knows a field: of several spellings the last one counts, the others are removed."""
    *others, last = [key for key in top if folded_key(key) == name] or [name]
    for key in others:
        del top[key]
    return last
