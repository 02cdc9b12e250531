"""Rules between options of a configuration that is valid option by option. Owns no files and no places in them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from proxy.config import BackendConfig
from proxy.config_tree import KeyPath
from proxy.endpoint import parse_endpoint

Finding = tuple[KeyPath, str, str]
"""Path of the option, what is wrong, how to mend it."""

EXTERNAL_ONLY: tuple[str, ...] = ("api_key",)
MANAGED_ONLY: tuple[str, ...] = (
    "gpus", "count", "binary", "model", "model_name", "batch_tokens", "host_cache_mib", "threads", "flags", "env",
    "models_dir", "keep_alive", "max_loaded_models", "first_port", "start_timeout_s", "restart",
)  # fmt: skip
OLLAMA_ONLY = ("models_dir", "keep_alive", "max_loaded_models", "first_port")
LLAMA_SERVER_ONLY = ("model", "model_name", "flags")


def backend_problems(backends: Iterable[tuple[int, BackendConfig]]) -> Iterator[Finding]:
    """What is wrong with the backends among themselves, and with options that do not fit the kind of a backend.

    Each comes with its index in the configuration, since only those that are valid by themselves are given.
    """
    names: dict[str, list[int]] = defaultdict(list)
    places: dict[str, list[int]] = defaultdict(list)
    for index, backend in backends:
        yield from _misplaced(index, backend)
        if backend.name is not None:
            names[backend.name].append(index)
        if backend.url is not None:
            places[str(parse_endpoint(backend.url))].append(index)
        elif backend.engine != "ollama" and backend.model is None:
            fix = 'add model = "/path/to/model.gguf", or engine = "ollama", or url for an engine that runs already'
            yield ("backends", index), "llama-server needs a model to load", fix
    for name, used_by in names.items():
        for index in used_by[1:]:
            first = f"backends[{used_by[0]}]"
            yield ("backends", index, "name"), f"{name!r} is also the name of {first}", "give each backend its own name"
    for place, used_by in places.items():
        for index in used_by[1:]:
            what = f"{place} is also backends[{used_by[0]}]: the engine would get twice its running limit"
            yield ("backends", index, "url"), what, "remove one of the two"


def unfit_keys(backend: BackendConfig) -> dict[str, str]:
    """Options that mean nothing for this kind of backend, each with the reason."""
    if backend.url is not None:
        return dict.fromkeys(MANAGED_ONLY, "is for engines that slotgate starts, and this one has a url")
    unfit = dict.fromkeys(EXTERNAL_ONLY, "is for engines with a url; those that slotgate starts get a random key")
    other, keys = ("llama-server", LLAMA_SERVER_ONLY) if backend.engine == "ollama" else ("ollama", OLLAMA_ONLY)
    return unfit | dict.fromkeys(keys, f'is for engine = "{other}", and this is "{backend.engine}"')


def _misplaced(index: int, backend: BackendConfig) -> Iterator[Finding]:
    for key, why in unfit_keys(backend).items():
        if key in backend.model_fields_set:
            yield ("backends", index, key), why, "remove it, or change what this backend is"
