"""How a model is loaded, and which request makes Ollama load it anew. Pure; must not know queues or processes.

Ollama compares the options that shape a runner after merging default, Modelfile and request (sched.go needsReload).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from proxy.emulated.options import EmulatedModel

RUNNER_OPTIONS = (
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "use_mmap",
    "num_thread",
    "draft_num_predict",
    "shift",
)
"""What of a request shapes the runner; `shift` stands beside the options, the others among them."""

_ALONE = ("mllama", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe")
"""Families that run one request at a time whatever is configured (sched.go); nemotron_h* too."""
_LEAST_CONTEXT = 4
_LEAST_VISION_CONTEXT = 2048


class Shape(msgspec.Struct, frozen=True):
    """One way to load a model."""

    context: int
    """Tokens per slot."""
    slots: int
    batch: int
    num_gpu: int = -1
    """Layers on the GPU; negative: as many as fit."""
    main_gpu: int = 0
    use_mmap: bool | None = None
    num_thread: int = 0
    draft_num_predict: int = 0
    shift: bool = True

    def serves(self, asked: "Shape") -> bool:
        """Whether a runner of this shape answers a request for that one without a reload."""
        if asked.num_gpu < 0:
            asked = msgspec.structs.replace(asked, num_gpu=self.num_gpu)
        return asked == self


def slots_of(model: EmulatedModel, parallel: int) -> int:
    """How many requests of a model run at once, with so many configured."""
    alone = model.family in _ALONE or model.family.startswith("nemotron_h") or "completion" not in model.capabilities
    return 1 if alone else parallel


def shape_of(model: EmulatedModel, asked: Mapping[str, Any], *, context: int, parallel: int) -> Shape:
    """The shape that a request asks for.

    Args:
        model: which is to be loaded.
        asked: the runner options, Modelfile and request merged; what is missing is automatic.
        context: tokens per slot where nobody says (OLLAMA_CONTEXT_LENGTH).
        parallel: OLLAMA_NUM_PARALLEL.
    """
    wanted = asked.get("num_ctx")
    tokens = max(_LEAST_CONTEXT, int(wanted)) if wanted is not None else context
    if "vision" in model.capabilities:
        tokens = max(tokens, _LEAST_VISION_CONTEXT)
    tokens = min(tokens, model.train_context)
    slots = slots_of(model, parallel)
    batch = int(asked.get("num_batch") or _automatic_batch(tokens * slots))
    shift = asked.get("shift")
    return Shape(
        context=tokens,
        slots=slots,
        batch=batch,
        num_gpu=int(asked.get("num_gpu", -1)),
        main_gpu=int(asked.get("main_gpu", 0)),
        use_mmap=asked.get("use_mmap"),
        num_thread=int(asked.get("num_thread", 0)),
        draft_num_predict=int(asked.get("draft_num_predict", 0)),
        shift=model.family != "deepseek2" if shift is None else bool(shift),
    )


def _automatic_batch(context_total: int) -> int:
    """What Ollama takes where nobody says (sched.go)."""
    if context_total > 32768:
        return 2048
    return 1024 if context_total > 4096 else 512


def command_line(shape: Shape, *, model_path: str, port: int, embeds: bool) -> list[str]:
    """The arguments of Ollama's llama-server child, as recorded (without the program)."""
    context, slots, batch = str(shape.context * shape.slots), str(shape.slots), str(shape.batch)
    command = ["--model", model_path, "--port", str(port), "--host", "127.0.0.1", "--no-webui", "--offline"]
    command += ["-c", context, "-np", slots, "--log-verbosity", "4", "--no-log-prefix", "--no-log-timestamps"]
    command += ["--no-jinja", "--chat-template", "chatml", "--load-mode", "none", "--flash-attn", "auto"]
    command += ["-b", batch, "-ub", batch]
    if shape.num_gpu >= 0:
        command += ["-ngl", str(shape.num_gpu)]
    if shape.num_thread:
        command += ["-t", str(shape.num_thread)]
    if embeds:
        command += ["--embeddings"]
    return command + (["--context-shift", "--keep", "4"] if shape.shift else [])
