"""What an emulated engine can be made to be. Owns the names, units and defaults; must not know how they are used."""

import math
from typing import Any

import msgspec

from proxy.emulated.engine import Departure
from scheduler.simulation.engine import EngineSettings
from scheduler.simulation.step_times import PRESETS, StepTimes


class EmulatedModel(msgspec.Struct, frozen=True):
    """One model that an emulated engine has."""

    name: str
    capabilities: tuple[str, ...] = ("completion", "tools")
    """In Ollama's words: completion, tools, embedding, insert, vision, thinking."""
    parameters: int = 8_030_261_248
    size_bytes: int = 4_661_224_676
    family: str = "llama"
    quantization: str = "Q4_0"
    train_context: int = 131_072
    embedding_length: int = 64
    weights: str = ""
    """What the digest of its weights is made from; empty: its name. Models that share it share one runner (Ollama)."""
    settings: dict[str, Any] = {}
    """PARAMETERs of its Modelfile (Ollama), as `num_ctx`."""

    @property
    def tagged(self) -> str:
        """The name with its tag."""
        return self.name if ":" in self.name else f"{self.name}:latest"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """One emulated engine."""

    api: str = "llama-server"
    """`llama-server` or `ollama`."""
    models: tuple[EmulatedModel, ...] = (EmulatedModel("emulated"),)
    """llama-server has the first only."""
    slots: int = 4
    """Parallel sequences (-np; OLLAMA_NUM_PARALLEL per model)."""
    context: int = 4096
    """Tokens per slot."""
    card: StepTimes = PRESETS["4090"]
    speed: float = math.inf
    """Divides all step, load and copy times; infinity: nothing waits."""
    batch: int = 512
    """Tokens per step at most (-b)."""
    host_cache_tokens: int = 0
    """What the host prompt cache may hold (--cache-ram, in tokens); 0: there is none."""
    copy_idle_slots: bool = False
    """Every task first copies what idle slots hold to the host cache (--cache-idle-slots)."""
    kv_unified: bool = False
    """One KV pool for all slots (--kv-unified): idle slots that were copied are cleared."""
    seed: int = 0
    answer_tokens: tuple[int, int] = (128, 128)
    """Tokens after which an answer ends by itself: from, to."""
    departure: Departure = Departure.LAZY
    quiet_s: float = 1.0
    """How long nothing may happen until a lazy engine looks whether clients are still there."""
    api_keys: tuple[str, ...] = ()
    """Empty: no key is asked for."""
    load_s: float = 0.0
    """Loading a model: before the engine is ready (llama-server), or at the first request (Ollama)."""
    max_loaded: int = 3
    """Ollama: models in memory at most (OLLAMA_MAX_LOADED_MODELS)."""
    memory_bytes: int = 0
    """Ollama: what the card holds; an additional model must fit into 80 % of what is free. 0: no limit."""
    max_queue: int = 512
    """Ollama: requests that may wait for a load."""
    keep_alive_s: float = 300.0
    """Ollama: how long an idle model stays; negative: for ever."""
    children: bool = False
    """Ollama: each loaded model has a process of its own, which tells its slots."""
    child_metrics: bool = False
    """Ollama: the children's /metrics are on (LLAMA_ARG_ENDPOINT_METRICS)."""
    ps_stall_s: float = 0.0
    """Ollama: how long /api/ps hangs at each load and unload. As long as that the next load waits for memory to be
    free again after an unload. Divided by the speed."""
    models_dir: str = ""
    """Ollama: directory of the model store, which several may share (OLLAMA_MODELS); empty: in memory."""
    prunes: bool = True
    """Ollama: blobs that no model needs are deleted at the start (without OLLAMA_NOPRUNE)."""
    registry: tuple[EmulatedModel, ...] = ()
    """Ollama: what can be pulled; without any there is no network."""
    registry_bytes_per_s: float = math.inf
    """Ollama: how fast; not divided by the speed."""
    cloud: bool = False
    """Ollama: signed in to ollama.com, so that cloud models are answered."""
    embeddings: bool = False
    reranking: bool = False
    infill: bool = False
    metrics: bool = True
    save_path: str = ""
    """Directory for saved slots; empty: saving is off."""
    fault_route: bool = False
    """Whether /emulated/faults exists."""
    version: str = "0.33.0"
    idle_timeout_s: float = 5.0
    """llama-server closes a connection that is idle for so long."""

    def settings(
        self, *, slots: int | None = None, context: int | None = None, batch: int | None = None
    ) -> EngineSettings:
        """What the engine's model is told; `slots`, `context` and `batch`: of one model of several (Ollama)."""
        return EngineSettings(
            times=self.card,
            slots=self.slots if slots is None else slots,
            context=self.context if context is None else context,
            batch=self.batch if batch is None else batch,
            host_tokens=self.host_cache_tokens,
            copies_idle=self.copy_idle_slots,
            unified=self.kv_unified,
            single_steps=True,
            tells_steps=True,
        )


_NUMBERS = {
    "size": "size_bytes",
    "parameters": "parameters",
    "context": "train_context",
    "embedding": "embedding_length",
}
_TEXTS = {"family": "family", "quantization": "quantization", "weights": "weights"}


def read_model(text: str, capabilities: tuple[str, ...] = EmulatedModel("").capabilities) -> EmulatedModel:
    """A model as it is written on a command line: `NAME[,KEY=VALUE...]`.

    Args:
        text: keys are `size` (bytes), `parameters` (weights), `context` (tokens it was trained for), `embedding`
            (length), `family`, `quantization`, `weights`, `capabilities` (joined by `+`), `num_ctx` (of its Modelfile).
        capabilities: where the text names none.

    Raises:
        ValueError: no such key, or no number.
    """
    name, *rest = text.split(",")
    values: dict[str, Any] = {"capabilities": capabilities}
    for part in rest:
        key, _, value = part.partition("=")
        if (key in _NUMBERS or key == "num_ctx") and not value.isdecimal():
            raise ValueError(f"{key} of {text!r} is a whole number")
        if key in _NUMBERS:
            values[_NUMBERS[key]] = int(value)
        elif key in _TEXTS:
            values[_TEXTS[key]] = value
        elif key == "capabilities":
            values["capabilities"] = tuple(value.split("+"))
        elif key == "num_ctx":
            values["settings"] = {"num_ctx": int(value)}
        else:
            known = ", ".join([*_NUMBERS, *_TEXTS, "capabilities", "num_ctx"])
            raise ValueError(f"{key!r} of {text!r} is not one of {known}")
    return EmulatedModel(name, **values)
