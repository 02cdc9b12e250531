"""Owns how engines are started: pure functions from configuration to command line, environment and endpoint.

Creates nothing, starts nothing, asks nobody; the caller brings paths, ports and keys.
"""

import re
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from proxy.backends.orphans import MARKER
from proxy.config import BackendConfig
from proxy.endpoint import Endpoint
from scheduler.domain import Engine, Gpu

CPU_HOST_CACHE_MIB = 256
"""Host prompt cache of a CPU engine: there a copy costs a fortieth of computing (reference gpu.md section 4)."""
GPU_HOST_CACHE_MIB = 0
"""On a GPU a hit in the host cache takes as long as computing the prompt (reference gpu.md section 2)."""

_KEEPER = Path(__file__).with_name("keeper.py")
_PRIVATE_PREFIXES = ("SLOTGATE_", "LLAMA_ARG_", "LISTEN_", "WATCHDOG_")
_PRIVATE = frozenset({"LLAMA_API_KEY", "NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY"})
_PART_OF_MANY = re.compile(r"-\d{5}-of-\d{5}$")


class LaunchError(Exception):
    """An engine cannot be started as configured; the message says what is missing and how to give it."""


class Program(msgspec.Struct, frozen=True):
    """What is run for an engine."""

    engine: Engine
    argv: tuple[str, ...]
    embedded: bool = False


class Places(msgspec.Struct, frozen=True):
    """Where one start of a backend lives. Paths exist already; the key file holds `key`."""

    log_path: Path
    marker: str
    """Value of the environment marker, see `orphans`."""
    socket_path: Path | None = None
    port: int = 0
    """Loopback port, where the engine has no unix socket."""
    key_path: Path | None = None
    key: str = ""
    slots_path: Path | None = None


class LaunchSpec(msgspec.Struct, frozen=True):
    """Everything needed to start one engine, and what it is expected to say of itself."""

    name: str
    engine: Engine
    argv: tuple[str, ...]
    """Holds no secret: command lines are visible to everybody."""
    env: dict[str, str]
    """The whole environment."""
    endpoint: Endpoint
    log_path: Path
    marker: str
    slots: int
    slot_context_tokens: int
    model_name: str | None = None
    gpu: Gpu | None = None
    death_signal: int = int(signal.SIGKILL)
    """What the engine gets if its keeper is killed."""


def choose_program(config: BackendConfig, which: Callable[[str], str | None] = shutil.which) -> Program:
    """Find what to run: the given binary, one on PATH, or the embedded engine.

    Raises:
        LaunchError: nothing that fits is installed.
    """
    engine = config.engine
    if engine == "auto" and config.binary is not None and config.binary.name.startswith("ollama"):
        engine = "ollama"
    name = "ollama" if engine == "ollama" else "llama-server"
    if config.binary is not None and engine != "embedded":
        path = which(str(config.binary))
        if path is None:
            raise LaunchError(f"binary = {str(config.binary)!r} is not an executable file")
        return Program(Engine(name), (path,))
    path = None if engine == "embedded" else which(name)
    if path is not None:
        return Program(Engine(name), (path,))
    if engine == "ollama":
        raise LaunchError("ollama is not on PATH; install it, or set binary to its path")
    if find_spec("xllamacpp") is None:
        if engine == "embedded":
            raise LaunchError("the embedded engine is not installed; install slotgate[embedded]")
        raise LaunchError("llama-server is not on PATH; install it, set binary to its path, or add slotgate[embedded]")
    return Program(Engine.LLAMA_SERVER, (sys.executable, "-P", "-m", "proxy.backends.embedded"), embedded=True)


def model_name(config: BackendConfig) -> str | None:
    """The name under which clients know a llama-server's model."""
    if config.model_name or config.model is None:
        return config.model_name
    stem = config.model.name.removesuffix(".gguf")
    return _PART_OF_MANY.sub("", stem)


def launch_spec(
    config: BackendConfig,
    program: Program,
    places: Places,
    environ: Mapping[str, str],
    *,
    name: str,
    gpu: Gpu | None = None,
    threads: int | None = None,
) -> LaunchSpec:
    """How to start one backend.

    `environ` is slotgate's own environment; what is private to slotgate is not passed on. `gpu` is the only card that
    the engine may see (None: it gets none), `threads` its CPU threads (None: it chooses).

    Raises:
        LaunchError: something needed is not configured.
    """
    if program.engine is Engine.OLLAMA:
        return _ollama(config, program, places, environ, name, gpu, threads)
    return _llama_server(config, program, places, environ, name, gpu, threads)


def keeper_command(spec: LaunchSpec, *, grace_s: float, log_bytes: int, parent: int) -> list[str]:
    """The command line that runs an engine under its keeper; its standard input must be a pipe that stays open.

    `grace_s` are the seconds from SIGTERM to SIGKILL, `parent` is the process whose death ends it all.
    """
    options = {"--log-bytes": log_bytes, "--grace": grace_s, "--death-signal": spec.death_signal}
    return kept(spec.argv, spec.log_path, parent=parent, options=options)


def kept(argv: Sequence[str], log: Path, *, parent: int, options: Mapping[str, float]) -> list[str]:
    """A command line under a keeper, which also ends it with `parent`; its standard input: see `keeper_command`.

    `options` are further flags of the keeper.
    """
    flags = [text for name, value in options.items() for text in (name, str(value))]
    return [sys.executable, "-I", "-S", str(_KEEPER), f"--log={log}", f"--parent={parent}", *flags, "--", *argv]


def loopback(port: int, headers: tuple[tuple[str, str], ...] = ()) -> Endpoint:
    """A port that slotgate chose for an engine of its own."""
    return Endpoint(host=f"127.0.0.1:{port}", port=port, address="127.0.0.1", headers=headers)


def host_cache_mib(config: BackendConfig, gpu: Gpu | None) -> int:
    """Size of the engine's host prompt cache in MiB: as configured, else the default for the hardware."""
    if config.host_cache_mib is not None:
        return config.host_cache_mib
    return CPU_HOST_CACHE_MIB if gpu is None else GPU_HOST_CACHE_MIB


def _environment(environ: Mapping[str, str], places: Places, gpu: Gpu | None) -> dict[str, str]:
    kept = {k: v for k, v in environ.items() if k not in _PRIVATE and not k.startswith(_PRIVATE_PREFIXES)}
    return kept | {
        MARKER: places.marker,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": gpu.uuid if gpu else "-1",
    }


def _llama_server(
    config: BackendConfig,
    program: Program,
    places: Places,
    environ: Mapping[str, str],
    name: str,
    gpu: Gpu | None,
    threads: int | None,
) -> LaunchSpec:
    alias = model_name(config)
    if config.model is None or alias is None:
        raise LaunchError(f"backend {name}: a managed llama-server needs model, the path of a GGUF file")
    if places.socket_path is not None:
        address = ["--host", str(places.socket_path)]
        endpoint = Endpoint(host="localhost", unix_path=str(places.socket_path), headers=_bearer(places.key))
    else:
        address = ["--host", "127.0.0.1", "--port", str(places.port)]
        endpoint = loopback(places.port, _bearer(places.key))
    flags = [
        *("-m", str(config.model.absolute()), "-a", alias, *address),
        *("-np", str(config.slots), "-c", str(config.slots * config.context_tokens), "--no-kv-unified"),
        *("-b", str(config.batch_tokens), "-ub", str(min(512, config.batch_tokens))),
        *("--cache-ram", str(host_cache_mib(config, gpu)), "--no-cache-idle-slots"),
        *("-ngl", "all" if gpu else "0"),
        *("--metrics", "--slots"),
    ]
    if threads is not None:
        flags += ["-t", str(threads), "-tb", str(threads)]
    if places.slots_path is not None:
        flags += ["--slot-save-path", str(places.slots_path)]
    if places.key_path is not None:
        flags += ["--api-key-file", str(places.key_path)]
    env = _environment(environ, places, gpu)
    if program.embedded:
        flags += ["--no-ui"]
    else:
        flags += [] if gpu else ["--device", "none"]
        env |= {"LLAMA_ARG_UI": "0", "LLAMA_ARG_WEBUI": "0"}  # the flag's name differs between versions, see its help
    return LaunchSpec(
        name=name,
        engine=Engine.LLAMA_SERVER,
        argv=(*program.argv, *flags, *config.flags),
        env=env | config.env,
        endpoint=endpoint,
        log_path=places.log_path,
        marker=places.marker,
        slots=config.slots,
        slot_context_tokens=config.context_tokens,
        model_name=alias,
        gpu=gpu,
    )


def _bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("Authorization", f"Bearer {key}"),) if key else ()


def _ollama(
    config: BackendConfig,
    program: Program,
    places: Places,
    environ: Mapping[str, str],
    name: str,
    gpu: Gpu | None,
    threads: int | None,
) -> LaunchSpec:
    endpoint = loopback(places.port)
    settings = {
        "OLLAMA_NUM_PARALLEL": str(config.slots),
        "OLLAMA_CONTEXT_LENGTH": str(config.context_tokens),
        "OLLAMA_MAX_LOADED_MODELS": str(config.max_loaded_models),
        "OLLAMA_KEEP_ALIVE": config.keep_alive,
        "OLLAMA_NOPRUNE": "1",  # several share one store: none may delete what another downloads
        "OLLAMA_VULKAN": "0",  # it ignores CUDA_VISIBLE_DEVICES and would show the other cards
        # its llama-server children inherit these
        "LLAMA_ARG_CACHE_RAM": str(host_cache_mib(config, gpu)),
        "LLAMA_ARG_CACHE_IDLE_SLOTS": "0",
        "LLAMA_ARG_ENDPOINT_METRICS": "1",
    }
    if config.models_dir is not None:
        settings["OLLAMA_MODELS"] = str(config.models_dir.absolute())
    if threads is not None:
        settings["LLAMA_ARG_THREADS"] = settings["LLAMA_ARG_THREADS_BATCH"] = str(threads)
    fixed = {"OLLAMA_HOST": endpoint.host, MARKER: places.marker}  # what slotgate itself depends on
    env = _environment(environ, places, gpu) | settings | config.env | fixed
    env.pop("LLAMA_API_KEY", None)  # Ollama would get 401 from its own child
    return LaunchSpec(
        name=name,
        engine=Engine.OLLAMA,
        argv=(*program.argv, "serve"),
        env=env,
        endpoint=endpoint,
        log_path=places.log_path,
        marker=places.marker,
        slots=config.slots,
        slot_context_tokens=config.context_tokens,
        gpu=gpu,
        death_signal=int(signal.SIGTERM),  # by SIGTERM its child goes too, by SIGKILL it would live on
    )
