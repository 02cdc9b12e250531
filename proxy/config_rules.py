"""Rules between options of a configuration that is valid option by option. Owns no files and no places in them."""

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from proxy.config import BackendConfig, BoxConfig
from proxy.config_tree import KeyPath
from proxy.endpoint import MASK, Endpoint, parse_endpoint
from proxy.listen_address import parse_listen
from proxy.policy_keys import problems_of

Finding = tuple[KeyPath, str, str]
"""Path of the option, what is wrong, how to mend it."""

EXTERNAL_ONLY: tuple[str, ...] = ("api_key", "gpu_name")
MANAGED_ONLY: tuple[str, ...] = (
    "gpus", "count", "binary", "model", "model_name", "batch_tokens", "host_cache_mib", "threads", "flags", "env",
    "models_dir", "keep_alive", "first_port", "start_timeout_s", "restart",
)  # fmt: skip
OLLAMA_ONLY = ("models_dir", "store", "keep_alive", "max_loaded_models", "first_port", "cloud")
LLAMA_SERVER_ONLY = ("model", "model_name", "flags")

_ADDRESS = "slotgate reaches its engine at an address of its own, clients use `listen`"
_KEY = "slotgate gives its engine a random key"
_ASKED = "slotgate reads it, and has it on already"
_PLAIN = "slotgate asks its engine without it"
OWN_FLAGS: Mapping[str, str] = {
    "--host": _ADDRESS, "--port": _ADDRESS, "--reuse-port": _ADDRESS,
    "--api-key": _KEY, "--api-key-file": _KEY,
    "--metrics": _ASKED, "--slots": _ASKED, "--no-slots": _ASKED,
    "--api-prefix": _PLAIN, "--ssl-key-file": _PLAIN, "--ssl-cert-file": _PLAIN,
    "-m": "model", "--model": "model", "-mu": "model", "--model-url": "model",
    "-hf": "model", "-hfr": "model", "--hf-repo": "model", "-dr": "model", "--docker-repo": "model",
    "-a": "model_name", "--alias": "model_name",
    "-np": "slots", "--parallel": "slots",
    "-c": "context_tokens", "--ctx-size": "context_tokens",
    "-b": "batch_tokens", "--batch-size": "batch_tokens",
    "-cram": "host_cache_mib", "--cache-ram": "host_cache_mib",
    "-t": "threads", "--threads": "threads",
}  # fmt: skip
"""Flags of llama-server that slotgate sets itself: the option that is for it, or why there is none."""
OWN_VARIABLES: Mapping[str, str] = {
    "LLAMA_ARG_HOST": _ADDRESS, "LLAMA_ARG_PORT": _ADDRESS, "LLAMA_ARG_REUSE_PORT": _ADDRESS, "OLLAMA_HOST": _ADDRESS,
    "LLAMA_API_KEY": _KEY,
    "LLAMA_ARG_ENDPOINT_METRICS": _ASKED, "LLAMA_ARG_ENDPOINT_SLOTS": _ASKED, "LLAMA_ARG_NO_ENDPOINT_SLOTS": _ASKED,
    "LLAMA_ARG_API_PREFIX": _PLAIN, "LLAMA_ARG_SSL_KEY_FILE": _PLAIN, "LLAMA_ARG_SSL_CERT_FILE": _PLAIN,
    "LLAMA_ARG_MODEL": "model", "LLAMA_ARG_MODEL_URL": "model", "LLAMA_ARG_HF_REPO": "model",
    "LLAMA_ARG_DOCKER_REPO": "model",
    "LLAMA_ARG_ALIAS": "model_name",
    "LLAMA_ARG_N_PARALLEL": "slots", "OLLAMA_NUM_PARALLEL": "slots",
    "LLAMA_ARG_CTX_SIZE": "context_tokens", "OLLAMA_CONTEXT_LENGTH": "context_tokens",
    "LLAMA_ARG_BATCH": "batch_tokens",
    "LLAMA_ARG_CACHE_RAM": "host_cache_mib",
    "LLAMA_ARG_THREADS": "threads",
    "OLLAMA_MODELS": "models_dir", "OLLAMA_KEEP_ALIVE": "keep_alive", "OLLAMA_MAX_LOADED_MODELS": "max_loaded_models",
    "CUDA_VISIBLE_DEVICES": "gpus", "CUDA_DEVICE_ORDER": "gpus",
    "SLOTGATE_BACKEND": "slotgate finds its engines by it",
}  # fmt: skip
"""The same for environment variables of llama-server, Ollama and CUDA."""
SECRET_LENGTH = 16
GATE_PORT = 11436
"""In advice only."""
HOW_TO_MAKE_ONE = "make one with `openssl rand -hex 32`, and set secret, or secret_file, to the same on all boxes"
_SAME_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})


def backend_problems(backends: Iterable[tuple[int, BackendConfig]]) -> Iterator[Finding]:
    """What is wrong with the backends among themselves, and with options that do not fit the kind of a backend.

    Each comes with its index in the configuration, since only those that are valid by themselves are given.
    """
    names: dict[str, list[int]] = defaultdict(list)
    places: dict[str, list[int]] = defaultdict(list)
    clouds: list[int] = []
    for index, backend in backends:
        yield from _misplaced(index, backend)
        yield from _overriding(index, backend)
        yield from _beyond_slots(index, backend)
        if backend.cloud:
            clouds.append(index)
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
    for index in clouds[1:]:
        yield ("backends", index, "cloud"), f"is true for backends[{clouds[0]}] too", "leave it true for one Ollama"
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


def _overriding(index: int, backend: BackendConfig) -> Iterator[Finding]:
    """Flags and variables of a managed engine that would undo what slotgate sets itself."""
    if backend.url is not None:
        return
    for flag in backend.flags:
        name = re.split(r"[=\s]", flag.strip(), maxsplit=1)[0]
        if name.startswith("--"):
            name = name.replace("_", "-")  # as llama-server reads it
        if name in OWN_FLAGS:
            yield ("backends", index, "flags"), f"{name} is slotgate's to set", _instead(backend, name, OWN_FLAGS[name])
    for name in backend.env:
        if name == "LLAMA_ARG_ENDPOINT_METRICS" and backend.engine == "ollama":
            continue  # it helps to know what an Ollama's children do, and can be done without
        if name in OWN_VARIABLES:
            place: KeyPath = ("backends", index, "env", name)
            yield place, f"{name} is slotgate's to set", _instead(backend, name, OWN_VARIABLES[name])


def _instead(backend: BackendConfig, name: str, own: str) -> str:
    if own not in BackendConfig.model_fields:
        return f"leave {name} out: {own}"
    if own in unfit_keys(backend):
        return f"leave {name} out: it is not for this engine"
    more = ", which is for one slot" if own == "context_tokens" else ""
    return f"leave {name} out and set {own}{more}"


def _beyond_slots(index: int, backend: BackendConfig) -> Iterator[Finding]:
    """For an external engine, where only a given number of slots binds: the default is a guess."""
    limit = backend.running_limit
    if (
        backend.url is not None
        and "slots" in backend.model_fields_set
        and isinstance(limit, int)
        and limit > backend.slots
    ):
        what = f"{limit} is more than slots = {backend.slots}"
        yield ("backends", index, "running_limit"), what, "set it to at most slots, or correct slots"


def loop_problems(listen: str, backends: Iterable[tuple[int, BackendConfig]]) -> Iterator[Finding]:
    """Backends that are slotgate itself: each request would come back to it for ever."""
    try:
        own = parse_listen(listen)
    except ValueError:  # told elsewhere
        return
    for index, backend in backends:
        if backend.url is None:
            continue
        endpoint = parse_endpoint(backend.url)
        if own.unix_path is not None:
            same = endpoint.unix_path == str(own.unix_path)
        else:
            same = own.port == endpoint.port != 0 and _same_host(own.host, endpoint)
        if same:
            what = f"{endpoint} is where slotgate itself listens (listen = {listen})"
            yield ("backends", index, "url"), what, "give the engine's address, or set listen to another one"


def section_problems(values: Mapping[str | int, Any]) -> Iterator[Finding]:
    """What is wrong within single sections, among the values of a whole configuration."""
    yield from policy_problems(values)
    with contextlib.suppress(ValidationError):  # told by the check of the whole
        yield from box_problems(BoxConfig.model_validate(values.get("box", {})))


def policy_problems(values: Mapping[str | int, Any]) -> Iterator[Finding]:
    """What is wrong with the keys of `policy.set`, among the values of a whole configuration."""
    policy = values.get("policy")
    changes = policy.get("set") if isinstance(policy, dict) else None
    for problem in problems_of(changes) if isinstance(changes, dict) else ():
        yield ("policy", "set", problem.key), problem.what, problem.fix


def box_problems(box: BoxConfig) -> Iterator[Finding]:
    """What keeps a box from having a gate, or makes its options mean nothing."""
    secret = MASK if box.secret is None else box.secret.get_secret_value()
    if secret != MASK and (what := secret_problem(secret)):  # what `config show` prints may be looked at as a file
        yield ("box", "secret"), what, HOW_TO_MAKE_ONE
    for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if getattr(box, one) is not None and getattr(box, other) is None:
            yield ("box", one), f"is there without {other}", f"set {other} too, or remove {one}"
    if box.gate is None:
        for key in ("gate_address", "tls_cert", "tls_key"):
            if getattr(box, key) is not None:
                yield ("box", key), "is for a gate, and there is none", f'set gate = ":{GATE_PORT}", or remove {key}'
        return
    if parse_listen(box.gate).unix_path is not None:
        yield ("box", "gate"), "other boxes cannot reach a unix socket", f'write gate = "HOST:{GATE_PORT}"'
    if box.secret is None and box.secret_file is None:
        yield ("box", "gate"), "without a secret everybody could use this box's backends", HOW_TO_MAKE_ONE
    if box.gate_address is not None:
        dialed = parse_listen(box.gate_address)
        if dialed.host in _EVERY_ADDRESS or not dialed.port:
            what = f"{box.gate_address!r} is no address that can be dialed"
            yield ("box", "gate_address"), what, f'write gate_address = "HOST:{GATE_PORT}"'


def box_warnings(box: BoxConfig) -> Iterator[Finding]:
    """What is allowed and not wise."""
    if box.gate is None or box.tls_cert is not None:
        return
    host = parse_listen(box.gate).host.lower()
    if host not in _SAME_LOOPBACK and not host.startswith("127."):
        what = f"the gate at {box.gate} has no TLS: who sees the network sees prompts, answers and the secret"
        fix = "set tls_cert and tls_key (docs/boxes.md), or use a network that is only your boxes'"
        yield ("box", "gate"), what, fix


def secret_problem(secret: str) -> str | None:
    """Why a text is no secret between boxes; never tells the text."""
    if secret == MASK:
        return "is a mask, as `slotgate config show` prints it"
    if len(secret) < SECRET_LENGTH:
        return f"is too short: it has {len(secret)} characters and needs {SECRET_LENGTH}"
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        return "has blanks or characters that are not ASCII in it"
    return None


def _same_host(listening: str, endpoint: Endpoint) -> bool:
    listening, asked = listening.lower(), endpoint.address.lower()
    local = asked in _SAME_LOOPBACK or asked.startswith("127.") or asked in _EVERY_ADDRESS
    if listening in _EVERY_ADDRESS:
        return local
    return listening == asked or (listening in _SAME_LOOPBACK and asked in _SAME_LOOPBACK | _EVERY_ADDRESS)


def shares_store(values: Mapping[Any, Any]) -> bool:
    """Whether a store is named that others may share: then this proxy needs no backends of its own."""
    store = values.get("store")
    return isinstance(store, Mapping) and bool(store.get("url"))
