"""Owns what the environment of `ollama serve` says: its settings, and what an operator should change there. Pure."""

from collections.abc import Mapping

import msgspec

_OFF = frozenset({"0", "false", "off", "no", "disabled"})


class OllamaSettings(msgspec.Struct, frozen=True):
    """What an Ollama was told. None: not told, so it has a default of its own, or not known."""

    parallel: int | None = None
    """Slots of each loaded model (OLLAMA_NUM_PARALLEL); some models have one in any case."""
    context_tokens: int | None = None
    """Context of one slot where neither request nor Modelfile says (OLLAMA_CONTEXT_LENGTH); None: by GPU memory."""
    max_loaded: int = 0
    """Models that it may hold at once (OLLAMA_MAX_LOADED_MODELS); 0: three for each GPU that it sees."""


def value(environment: Mapping[str, str], name: str) -> str:
    """A variable as Ollama reads it: without space and quotes around it. Source: envconfig/config.go, Var."""
    return environment.get(name, "").strip().strip("\"'")


def read_settings(environment: Mapping[str, str]) -> OllamaSettings:
    """The settings in a known environment: there an Ollama that is not told runs one request at a time.

    Source: envconfig/config.go:262 and server/sched.go:280-291 of Ollama 0.33.
    """
    return OllamaSettings(
        parallel=_number(environment, "OLLAMA_NUM_PARALLEL") or 1,
        context_tokens=_number(environment, "OLLAMA_CONTEXT_LENGTH") or None,
        max_loaded=_number(environment, "OLLAMA_MAX_LOADED_MODELS") or 0,
    )


def findings(environment: Mapping[str, str], unit: str = "", *, on_cpu: bool = False) -> tuple[str, ...]:
    """What to change at an Ollama that somebody else starts, one line each; why is told in docs/ollama.md.

    Args:
        environment: of `ollama serve`.
        unit: the systemd service that it belongs to; empty: none is known.
        on_cpu: it is known to use no GPU.
    """
    found = []
    cache_off = value(environment, "LLAMA_ARG_CACHE_RAM") == "0"
    if not on_cpu and value(environment, "LLAMA_ARG_CACHE_RAM") in {"", "-1"}:
        found.append(("LLAMA_ARG_CACHE_RAM=0", "copying prompts to host memory costs as much as computing them"))
    if not cache_off and value(environment, "LLAMA_ARG_CACHE_IDLE_SLOTS").lower() not in _OFF:
        found.append(("LLAMA_ARG_CACHE_IDLE_SLOTS=0", "each request copies what idle slots hold; all streams wait"))
    if value(environment, "LLAMA_ARG_ENDPOINT_METRICS").lower() in {"", *_OFF}:
        found.append(("LLAMA_ARG_ENDPOINT_METRICS=1", "without it, whether it makes progress is seen less well"))
    if _number(environment, "OLLAMA_NUM_PARALLEL") is None:
        found.append(("OLLAMA_NUM_PARALLEL=4", "or as many as fit: without it one request runs at a time"))
    if not _number(environment, "OLLAMA_MAX_LOADED_MODELS"):
        found.append(("OLLAMA_MAX_LOADED_MODELS=1", "or as many as fit: without it, what it evicts is a guess"))
    if not _number(environment, "OLLAMA_CONTEXT_LENGTH"):
        found.append(("OLLAMA_CONTEXT_LENGTH=8192", "or what you need: without it the memory of the GPUs decides"))
    if value(environment, "CUDA_VISIBLE_DEVICES") and not _no_vulkan(environment):
        found.append(("OLLAMA_VULKAN=0", "Vulkan shows it the GPUs that CUDA_VISIBLE_DEVICES hides"))
    where = f" by `systemctl edit {unit.removesuffix('.service')}`" if unit else ""
    lines = [f"set {setting} in its environment{where} ({why})" for setting, why in found]
    if environment.get("LLAMA_API_KEY"):
        lines.append("remove LLAMA_API_KEY from its environment: its own llama-server would answer it with 401")
    return tuple(lines)


ADVICE = (
    "what it was started with cannot be read: see to it that it has LLAMA_ARG_CACHE_RAM=0, "
    "LLAMA_ARG_ENDPOINT_METRICS=1, OLLAMA_NUM_PARALLEL, OLLAMA_MAX_LOADED_MODELS and OLLAMA_CONTEXT_LENGTH "
    "(docs/ollama.md)"
)
"""For an external one whose environment is not known."""


def _no_vulkan(environment: Mapping[str, str]) -> bool:
    return value(environment, "OLLAMA_VULKAN").lower() in _OFF or value(environment, "GGML_VK_VISIBLE_DEVICES") == "-1"


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """A count; None: not set, or none, which Ollama ignores."""
    text = value(environment, name)
    return int(text) if text.isascii() and text.isdigit() else None
