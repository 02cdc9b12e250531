"""The options of [residency]: with which options models are loaded at Ollamas. Owns their shape, not what they do."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from proxy.config_section import PositiveInt, Section
from scheduler.names import canonical

BUCKETS = [2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144]
"""Powers of two, as people ask for them."""


class ModelResidencyConfig(Section):
    """How one model is loaded."""

    num_ctx: PositiveInt | None = None
    """Context of one slot, in tokens, that this model is always loaded with, whatever a client asks for. Default: what
    clients ask for, rounded up to one of `context_buckets`."""
    pin: bool = False
    """Keep it loaded on one backend at least; like `slotgate pin`."""


class ResidencyConfig(Section):
    """With which options Ollamas load models: fewer kinds of them mean fewer loads; see docs/residency.md."""

    context_buckets: Annotated[list[PositiveInt], Field(min_length=1)] = BUCKETS
    """What a client's num_ctx is rounded up to, in tokens; beyond the largest it stays as it is."""
    options: Literal["ignore", "keep"] = "ignore"
    """Whether clients may choose other options that make an Ollama load a model anew: num_batch, num_gpu, main_gpu,
    num_thread, use_mmap, draft_num_predict. ignore: they are left out; keep: a copy is loaded for each combination."""
    models: dict[str, ModelResidencyConfig] = {}
    """Models by name, each with { num_ctx = 16384, pin = true } or one of the two."""
    grow_context: bool = False
    """Load a model with a larger context where prompt and answer would not fit the one that was asked for. Otherwise an
    Ollama leaves out the oldest messages; the header X-Slotgate-Context tells it."""
    clients_may_unload: bool = False
    """Whether any client may unload models (keep_alive = 0, `ollama stop`); else only API keys with admin = true."""

    @field_validator("context_buckets")
    @classmethod
    def _ascending(cls, buckets: list[int]) -> list[int]:
        if buckets != sorted(set(buckets)):
            raise ValueError(f"write each once, the smallest first: {sorted(set(buckets))}")
        return buckets

    @field_validator("models")
    @classmethod
    def _once_each(cls, models: dict[str, ModelResidencyConfig]) -> dict[str, ModelResidencyConfig]:
        """Names as clients write them; one model may have several."""
        named: dict[str, ModelResidencyConfig] = {}
        for name, entry in models.items():
            if not name.strip():
                raise ValueError("'' is no model: write its name, as in `slotgate list`")
            if canonical(name) in named:
                raise ValueError(f"{canonical(name)} is there twice")
            named[canonical(name)] = entry
        return named
