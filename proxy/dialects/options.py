"""Owns Ollama's `options`: their types, and what each becomes at a llama-server. Must not know replies or routes."""

from collections.abc import Mapping
from typing import Any

from proxy.dialects.errors import ClientError
from proxy.dialects.gojson import quote
from proxy.dialects.reading import names

_INTEGERS = names(
    "num_ctx num_batch num_gpu main_gpu num_thread draft_num_predict num_keep seed num_predict top_k repeat_last_n "
    "mirostat"
)
_FLOATS = names(
    "top_p min_p typical_p temperature repeat_penalty presence_penalty frequency_penalty mirostat_tau mirostat_eta"
)
_BOOLEANS = ("use_mmap",)

_SAME = names(
    "temperature top_k top_p min_p typical_p seed repeat_penalty repeat_last_n presence_penalty frequency_penalty "
    "mirostat mirostat_tau mirostat_eta"
)
"""Options that llama-server knows under the same name and meaning."""


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse wrong types as Ollama does. Unknown options are ignored, like there; null means unset.

    Raises:
        ClientError: 500 `option "num_ctx" must be of type integer`.
    """
    for listed, kinds, word in (
        (_INTEGERS, (int, float), "integer"),
        (_FLOATS, (int, float), "float32"),
        (_BOOLEANS, (bool,), "boolean"),
    ):
        for name in listed:
            value = options.get(name)
            wrong = not isinstance(value, kinds) or (isinstance(value, bool) and word != "boolean")
            if value is not None and wrong:
                raise ClientError(500, f"option {quote(name)} must be of type {word}")
    stop = options.get("stop")
    if stop is not None and not isinstance(stop, str):
        if not isinstance(stop, list):
            raise ClientError(500, 'option "stop" must be of type array')
        if not all(isinstance(text, str) for text in stop):
            raise ClientError(500, 'option "stop" must be of an array of strings')


def sampling(options: Mapping[str, Any]) -> dict[str, Any]:
    """Ollama's options as fields of a llama-server request; what is not given is left to the engine's own defaults.

    `num_predict` below 0 (without limit, or to the end of the context) is left out: llama-server then goes on to the
    end of the slot's context. What is decided when a llama-server starts (`num_ctx`, `num_gpu`, …) has no field here.
    """
    fields = {name: options[name] for name in _SAME if options.get(name) is not None}
    for name in ("top_k", "seed", "repeat_last_n", "mirostat"):
        if isinstance(fields.get(name), float):
            fields[name] = int(fields[name])
    limit = options.get("num_predict")
    if limit is not None and limit >= 0:
        fields["n_predict"] = int(limit)
    if options.get("num_keep") is not None:
        fields["n_keep"] = int(options["num_keep"])
    stop = options.get("stop")
    if stop:
        fields["stop"] = [stop] if isinstance(stop, str) else [text for text in stop if text]
    return fields
