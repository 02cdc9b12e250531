"""What is assumed of a card before anything was measured on it. Owns no learning, see `estimates`.

All rows are for an 8B model, Q4, f16 keys and values, and are scaled to the model's size where that is known. They are
good to a factor of two; that is enough to begin with: doubling or halving the whole cost of computing changed no result
of the simulations that the cost model was chosen by.
"""

import re

import msgspec

BATCH_TOKENS = 512
"""Prompt tokens that one reading of the weights serves: llama-server's `-b 512`, which costs nothing there."""
SIZE_8B_BYTES = 4.66e9
"""Weights of an 8B model in Q4."""
SHAPE_POWER = 0.6
"""Keys and values per token grow like the size of the weights to this power: 8B (4.2 GB) to 32B (17.9 GB) are 128 to
320 KiB. What each sequence adds to a step grew likewise (0.5 to 1.2 ms), copies about as much (measured on an H200)."""


class Rates(msgspec.Struct, frozen=True):
    """How fast one model runs on one card. All in milliseconds; none negative."""

    batch_ms: float
    """Reading the weights, once for each `BATCH_TOKENS` of a prompt."""
    token_ms: float
    """Computing one token of a prompt."""
    pair_ms: float
    """Attention of one prompt token to one token before it."""
    copy_ms_per_token: float
    """Copying a token's keys and values out of the card."""
    restore_ms_per_token: float
    """Copying them back in."""
    step_first_ms: float
    """Time per output token of a sequence that runs alone."""
    step_further_ms: float
    """What each further sequence adds to that."""
    source: str
    """Where the numbers come from, for people."""


# 4090: batches of 16 to 512 tokens took 6.55 ms + 0.0926 ms per token (ggml-org/llama.cpp pull request 7860, Q4_K_S;
# at most 4 % off). Attention and steps are derived: 0.13 us per context token from the memory's bandwidth, and per
# sequence 0.4 ms more than prefill needs for a token, as on an H200. Copies: the H200's, host memory being the limit.
_RTX_4090 = Rates(6.6, 0.093, 5e-6, 0.065, 0.032, 7.1, 0.6, "RTX 4090, published llama.cpp numbers, 8B Q4")

# Measured: llama-server b11434, CUDA 13, flash attention, 8B Q4_0. Fits prompts of 64 to 8192 tokens within 16 %, steps
# of 1 to 32 sequences within 15 %.
_H200 = Rates(6.0, 0.078, 6e-7, 0.065, 0.032, 3.3, 0.48, "H200, measured, 8B Q4_0")

_CARDS: dict[tuple[str, ...], tuple[float, float]] = {
    # Words of the name -> (prefill, decode) times as long as on a 4090. From github.com/XiongjieDai/
    # GPU-Benchmarks-on-LLM-Inference (llama-bench): 8B Q4_K_M at 1024 tokens, May 2024.
    ("4080",): (1.36, 1.20),
    ("4070", "ti"): (1.89, 1.55),
    ("3090",): (1.78, 1.14),
    ("3080",): (1.94, 1.20),
    ("3070",): (3.02, 1.80),
    # The same source, 7B Q4_0, December 2023.
    ("h100",): (1.14, 1.12),
    ("a100",): (1.61, 1.10),
    ("6000", "ada"): (1.41, 1.17),
    ("5000", "ada"): (1.57, 1.51),
    ("4000", "ada"): (3.04, 2.31),
    ("a6000",): (1.86, 1.34),
    # No number found. The 6000 Ada's chip; 864 instead of 960 GB/s of memory bandwidth (both data sheets).
    ("l40",): (1.41, 1.30),
    ("l40s",): (1.41, 1.30),
}
"""Steps grow per sequence like prefill, both being bound by arithmetic: a 3090 adds 1.07 ms for each of 2 to 8
sequences (ggml-org/llama.cpp pull request 15802), and 0.6 ms of the 4090 times 1.78 is that."""

_UNKNOWN_CARD = ("3090",)
"""An unknown card counts as one of the slower common ones; the first few answers put that right."""

# Measured on one core of a small machine with a model of 135M (98 MB, Q4_1).
_CPU = Rates(4.0, 2.2, 1e-4, 0.02, 0.008, 6.2, 2.5, "CPU, one core measured, 135M Q4_1")
_CPU_SIZE_BYTES = 98.4e6


def rates_for(gpu_name: str | None, size_bytes: int | None = None) -> Rates:
    """What to assume of a card.

    Args:
        gpu_name: as NVML names it ("NVIDIA GeForce RTX 4090"); None, or a name with the word "cpu": no card.
        size_bytes: the weights of the model (keys and values not counted); None: as an 8B model in Q4.
    """
    size = size_bytes if size_bytes and size_bytes > 0 else SIZE_8B_BYTES
    words = frozenset(re.findall(r"[a-z0-9]+", gpu_name.lower())) if gpu_name is not None else frozenset({"cpu"})
    if "cpu" in words:
        return _of_size(_CPU, size / _CPU_SIZE_BYTES)
    return _of_size(_card(words), size / SIZE_8B_BYTES)


def _card(words: frozenset[str]) -> Rates:
    """The row of a card for an 8B model; whole words are compared, so that an "RTX A1000" is no "A100"."""
    if "h200" in words:
        return _H200
    if "4090" in words:
        return _RTX_4090
    known = [card for card in _CARDS if words.issuperset(card)]
    card = max(known, key=len) if known else _UNKNOWN_CARD
    prefill, decode = _CARDS[card]
    name = " ".join(card).upper()
    return Rates(
        _RTX_4090.batch_ms * decode,
        _RTX_4090.token_ms * prefill,
        _RTX_4090.pair_ms * prefill,
        _RTX_4090.copy_ms_per_token,
        _RTX_4090.restore_ms_per_token,
        _RTX_4090.step_first_ms * decode,
        _RTX_4090.step_further_ms * prefill,
        f"{name}, published ratios to an RTX 4090" if known else f"unknown card, assumed as fast as a {name}",
    )


def _of_size(rates: Rates, ratio: float) -> Rates:
    """The same card with a model whose weights are `ratio` times as large."""
    shape = ratio**SHAPE_POWER
    return Rates(
        rates.batch_ms * ratio,
        rates.token_ms * ratio,
        rates.pair_ms * shape,
        rates.copy_ms_per_token * shape,
        rates.restore_ms_per_token * shape,
        rates.step_first_ms * ratio,
        rates.step_further_ms * shape,
        rates.source,
    )
