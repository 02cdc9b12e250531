"""An emulated engine in the place of the `ollama` program: its command line and its environment become options.

Must not know how options are used. Variables of Ollama (envconfig/config.go) and those of its llama-server children.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.emulated.go_values import duration_s
from proxy.emulated.ollama_heads import OllamaError

DEFAULT_LISTEN = "127.0.0.1:11434"
_SHIPPED_HOST_CACHE_TOKENS = 65_536
"""8 GiB of an 8B model's KV in f16: what llama-server's host cache holds as shipped."""
_SHIPPED_HOST_CACHE_MIB = 8192
_CONTEXT = 4096
_MAX_LOADED = 3


class UsageError(ValueError):
    """A command or a value that is not understood; the message is for people."""


def is_version(arguments: Sequence[str]) -> bool:
    """Whether only the version is asked for."""
    return bool(arguments) and arguments[0] in {"--version", "-v"}


def check_command(arguments: Sequence[str]) -> None:
    """Accept `serve` and `start`.

    Raises:
        UsageError: another command.
    """
    if not arguments or arguments[0] not in {"serve", "start"}:
        shown = " ".join(arguments) or "nothing"
        raise UsageError(f"the emulated ollama knows serve, start and --version, not {shown}")


def read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Fields of `Options`, and `listen`, from Ollama's variables.

    Raises:
        UsageError: a value is not understood.
    """

    def number(name: str, default: int) -> int:
        text = environment.get(name, "").strip()
        try:
            return int(text or default)
        except ValueError:
            raise UsageError(f"{name}={text} is no number") from None

    host_cache_mib = number("LLAMA_ARG_CACHE_RAM", _SHIPPED_HOST_CACHE_MIB)
    share = 1.0 if host_cache_mib < 0 else host_cache_mib / _SHIPPED_HOST_CACHE_MIB
    values: dict[str, Any] = {
        "listen": listen_address(environment.get("OLLAMA_HOST", "")),
        "slots": number("OLLAMA_NUM_PARALLEL", 1),
        "context": number("OLLAMA_CONTEXT_LENGTH", 0) or _CONTEXT,
        "max_loaded": number("OLLAMA_MAX_LOADED_MODELS", 0) or _MAX_LOADED,
        "max_queue": number("OLLAMA_MAX_QUEUE", 512),
        "models_dir": environment.get("OLLAMA_MODELS", ""),
        "prunes": not _on(environment.get("OLLAMA_NOPRUNE", "")),
        "child_metrics": child_metrics(environment),
        "host_cache_tokens": int(share * _SHIPPED_HOST_CACHE_TOKENS),
        "copy_idle_slots": bool(host_cache_mib) and _on(environment.get("LLAMA_ARG_CACHE_IDLE_SLOTS", "1")),
    }
    if keep_alive := environment.get("OLLAMA_KEEP_ALIVE", ""):
        values["keep_alive_s"] = _keep_alive_s(keep_alive)
    return values


def child_metrics(environment: Mapping[str, str]) -> bool:
    """Whether llama-servers that inherit this environment have their /metrics on."""
    return _on(environment.get("LLAMA_ARG_ENDPOINT_METRICS", ""))


def listen_address(host: str) -> str:
    """`HOST:PORT` of OLLAMA_HOST, which may lack either, and may have a scheme."""
    rest = host.strip().partition("://")[2] if "://" in host else host.strip()
    rest = rest.partition("/")[0]
    default_host, _, default_port = DEFAULT_LISTEN.partition(":")
    if rest.startswith("["):
        name, _, port = rest.partition("]")
        return f"{name}]:{port.removeprefix(':') or default_port}"
    name, _, port = rest.partition(":")
    return f"{name or default_host}:{port or default_port}"


def _keep_alive_s(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return duration_s(text) or 0.0
    except OllamaError as error:
        raise UsageError(f"OLLAMA_KEEP_ALIVE={text}: {error.message}") from None


def _on(text: str) -> bool:
    return text.strip().lower() not in {"", "0", "f", "false", "off", "no"}
