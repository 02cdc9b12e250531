"""Owns the embedded engine: llama.cpp's real HTTP server from PyPI `xllamacpp`, run as a process of its own.

`python -m proxy.backends.embedded -m MODEL --host PATH.sock ...` takes the llama-server flags that slotgate uses.
Knows nothing of slotgate: to everybody else it is a llama-server.
"""

import argparse
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
POOLING = ("none", "mean", "cls", "last", "rank")
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
GPU_LAYERS = {"auto": -1, "all": -2}
_GGUF_MAGIC = b"GGUF"


class UnusableError(Exception):
    """The engine cannot start; the message is one line for the person who reads the log."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UnusableError(message)


def _layers(text: str) -> int:
    return GPU_LAYERS[text] if text in GPU_LAYERS else int(text)


def _on_off(text: str) -> bool:
    if text not in {"on", "off"}:
        raise argparse.ArgumentTypeError(f"{text!r} is neither on nor off")
    return text == "on"


def _switch(parser: argparse.ArgumentParser, field: str, on: tuple[str, ...], off: tuple[str, ...]) -> None:
    """Flags that switch a field of the engine's parameters on or off; None where neither is given."""
    parser.add_argument(*on, dest=field, action="store_const", const=True, default=None)
    if off:
        parser.add_argument(*off, dest=field, action="store_const", const=False)


def make_parser() -> argparse.ArgumentParser:
    """The flags, spelled as llama-server spells them. Flags of another llama-server are refused by name."""
    parser = _Parser(prog="slotgate embedded engine", allow_abbrev=False, description="llama-server from xllamacpp")
    parser.add_argument("--list-devices", action="store_true")
    parser.add_argument("-m", "--model")
    parser.add_argument("-mm", "--mmproj")
    parser.add_argument("-a", "--alias", default="")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--api-prefix")
    parser.add_argument("--api-key-file", type=Path)
    parser.add_argument("--slot-save-path", type=Path)
    parser.add_argument("-np", "--parallel", dest="n_parallel", type=int)
    parser.add_argument("-c", "--ctx-size", dest="n_ctx", type=int)
    parser.add_argument("-b", "--batch-size", dest="n_batch", type=int)
    parser.add_argument("-ub", "--ubatch-size", dest="n_ubatch", type=int)
    parser.add_argument("-n", "--predict", "--n-predict", dest="n_predict", type=int)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("-tb", "--threads-batch", type=int)
    parser.add_argument("--threads-http", dest="n_threads_http", type=int)
    parser.add_argument("-cram", "--cache-ram", dest="cache_ram_mib", type=int)
    parser.add_argument("-ngl", "--gpu-layers", "--n-gpu-layers", dest="n_gpu_layers", type=_layers)
    parser.add_argument("-fa", "--flash-attn", choices=tuple(FLASH_ATTENTION))
    parser.add_argument("-fit", "--fit", dest="fit_params", type=_on_off)
    parser.add_argument("-ctk", "--cache-type-k", dest="cache_type_k", choices=CACHE_TYPES)
    parser.add_argument("-ctv", "--cache-type-v", dest="cache_type_v", choices=CACHE_TYPES)
    parser.add_argument("-sps", "--slot-prompt-similarity", dest="slot_prompt_similarity", type=float)
    parser.add_argument("--cache-reuse", dest="n_cache_reuse", type=int)
    parser.add_argument("--sse-ping-interval", dest="sse_ping_interval", type=int)
    parser.add_argument("--sleep-idle-seconds", dest="sleep_idle_seconds", type=int)
    parser.add_argument("--chat-template", dest="chat_template")
    parser.add_argument("--pooling", choices=POOLING)
    parser.add_argument("--temp", type=float)
    parser.add_argument("-s", "--seed", type=int)
    parser.add_argument("-lv", "--verbosity", "--log-verbosity", dest="verbosity", type=int)
    _switch(parser, "kv_unified", ("-kvu", "--kv-unified"), ("-no-kvu", "--no-kv-unified"))
    _switch(parser, "cache_idle_slots", ("--cache-idle-slots",), ("--no-cache-idle-slots",))
    _switch(parser, "cache_prompt", ("--cache-prompt",), ("--no-cache-prompt",))
    _switch(parser, "endpoint_metrics", ("--metrics",), ())
    _switch(parser, "endpoint_slots", ("--slots",), ("--no-slots",))
    _switch(parser, "endpoint_props", ("--props",), ())
    _switch(parser, "embedding", ("--embeddings", "--embedding"), ())
    _switch(parser, "reranking", ("--reranking", "--rerank"), ())
    _switch(parser, "use_jinja", ("--jinja",), ("--no-jinja",))
    _switch(parser, "ctx_shift", ("--context-shift",), ("--no-context-shift",))
    _switch(parser, "warmup", ("--warmup",), ("--no-warmup",))
    _switch(parser, "offline", ("--offline",), ())
    _switch(parser, "ui", ("--ui", "--webui"), ("--no-ui", "--no-webui"))
    return parser


_DIRECT = (
    "n_parallel", "n_ctx", "n_batch", "n_ubatch", "n_predict", "n_threads_http", "cache_ram_mib", "n_gpu_layers",
    "fit_params", "slot_prompt_similarity", "n_cache_reuse", "sse_ping_interval", "sleep_idle_seconds",
    "chat_template", "verbosity", "kv_unified", "cache_idle_slots", "cache_prompt", "endpoint_metrics",
    "endpoint_slots", "endpoint_props", "embedding", "use_jinja", "ctx_shift", "warmup", "offline", "ui", "api_prefix",
)  # fmt: skip
"""Arguments that carry the name of the engine's parameter."""


def read_keys(path: Path) -> list[str]:
    """API keys, one per line, as llama-server reads them.

    Raises:
        UnusableError: the file cannot be read or holds no key; an engine without a key would serve anybody.
    """
    try:
        keys = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise UnusableError(f"cannot read the API key file {path}: {error.strerror}") from error
    if not keys:
        raise UnusableError(f"the API key file {path} is empty")
    return keys


def check_model(path: str | None) -> None:
    """Refuse what cannot be a model before the engine tries.

    Raises:
        UnusableError: no path given, no such file, or not a GGUF file.
    """
    if not path:
        raise UnusableError("no model given; name a GGUF file with -m")
    try:
        with Path(path).open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise UnusableError(f"cannot read the model {path}: {error.strerror}") from error
    if magic != _GGUF_MAGIC:
        raise UnusableError(f"{path} is not a GGUF file")


def clear_address(host: str, port: int) -> None:
    """Make sure that the address can be bound: unlink a stale unix socket, refuse one that somebody serves.

    Raises:
        UnusableError: somebody listens there already, or the address is not ours to bind.
    """
    if host.endswith(".sock"):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(host)
            except ConnectionRefusedError:
                Path(host).unlink()  # llama-server leaves its socket behind and then cannot bind it again
            except FileNotFoundError:
                pass
            except OSError as error:
                raise UnusableError(f"cannot use the socket {host}: {error}") from error
            else:
                raise UnusableError(f"another process serves the socket {host}")
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UnusableError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error


def parameters(arguments: argparse.Namespace) -> Any:
    """The engine's own parameter struct, filled from our flags; what is not given keeps llama.cpp's default."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.model_alias = {name for name in arguments.alias.split(",") if name}
    params.hostnames = [arguments.host]
    params.port = arguments.port
    for name in _DIRECT:
        _put(params, name, getattr(arguments, name))
    _put(params.mmproj, "path", arguments.mmproj)
    _put(params.sampling, "temp", arguments.temp)
    _put(params.sampling, "seed", arguments.seed)
    _put(params.cpuparams, "n_threads", arguments.threads)
    _put(params.cpuparams_batch, "n_threads", arguments.threads_batch or arguments.threads)
    if arguments.api_key_file is not None:
        params.api_keys = read_keys(arguments.api_key_file)
    if arguments.slot_save_path is not None:
        params.slot_save_path = f"{str(arguments.slot_save_path).rstrip('/')}/"  # it is put before the name as it is
    _put_enums(params, arguments, xllamacpp)
    if params.embedding:
        params.n_batch = params.n_ubatch = max(params.n_batch, params.n_ubatch)  # pooling needs a prompt in one batch
    return params


def _put(target: Any, name: str, value: Any) -> None:
    if value is not None:
        setattr(target, name, value)


def _put_enums(params: Any, arguments: argparse.Namespace, xllamacpp: Any) -> None:
    if arguments.flash_attn is not None:
        params.flash_attn_type = xllamacpp.llama_flash_attn_type(FLASH_ATTENTION[arguments.flash_attn])
    for name in ("cache_type_k", "cache_type_v"):
        if (value := getattr(arguments, name)) is not None:
            setattr(params, name, getattr(xllamacpp.ggml_type, f"GGML_TYPE_{value.upper()}"))
    pooling = "rank" if arguments.reranking else arguments.pooling
    if pooling is not None:
        params.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
    if arguments.reranking:
        params.embedding = True


def list_devices() -> str:
    """What llama-server prints for --list-devices: one line per GPU that this build of the engine can use."""
    import xllamacpp

    lines = ["Available devices:"]
    for device in xllamacpp.get_device_info():
        if "GPU" in device["type"].name:
            total, free = (device[key] // 2**20 for key in ("memory_total", "memory_free"))
            lines.append(f"  {device['name']}: {device['description']} ({total} MiB, {free} MiB free)")
    return "\n".join(lines)


def gpus_listed(text: str) -> int:
    """How many devices a `--list-devices` answer names."""
    return len(re.findall(r"^\s+\S+: .*MiB", text, flags=re.MULTILINE))


def serve(arguments: argparse.Namespace) -> None:
    """Load the model and serve until SIGTERM or SIGINT; does not return.

    Raises:
        UnusableError: the model, the address or the key file does not work.
    """
    check_model(arguments.model)
    clear_address(arguments.host, arguments.port)
    try:
        params = parameters(arguments)
    except ImportError as error:
        raise UnusableError("xllamacpp is not installed; install slotgate[embedded]") from error
    import xllamacpp

    try:  # until this returns SIGTERM has its default action, which ends a load at once
        engine = xllamacpp.Server(params)
    except RuntimeError as error:
        raise UnusableError(f"the engine did not start with {arguments.model}: see the lines above") from error
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)  # works whichever thread the signal arrives in
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    sys.stderr.write(f"slotgate embedded engine: serving {engine.listening_address}\n")
    sys.stderr.flush()
    woken.recv(1)
    if arguments.host.endswith(".sock"):
        Path(arguments.host).unlink(missing_ok=True)
    leave(0)  # the server's destructor would wait for connected clients, without end


def leave(code: int) -> NoReturn:
    """End this process now, without waiting for the engine's threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> NoReturn:
    """Run the engine; on failure one line on stderr and exit status 1."""
    try:
        arguments = make_parser().parse_args()
        if arguments.list_devices:
            sys.stdout.write(f"{list_devices()}\n")
            leave(0)
        serve(arguments)
    except UnusableError as error:
        sys.stderr.write(f"slotgate embedded engine: error: {error}\n")
        leave(1)
    leave(0)


if __name__ == "__main__":
    main()
