"""How long one step of an engine takes on a card. Owns the arithmetic only; must not know clocks, sockets or slots."""

import math

import msgspec


class StepTimes(msgspec.Struct, frozen=True):
    """The time model of one card with one model; all values are milliseconds (or milliseconds per unit)."""

    fixed_ms: float
    """Reading the weights once, plus what does not depend on the batch."""
    token_ms: float
    """Computing one token of the batch, decoded or prefilled."""
    sequence_ms: float
    """Each decoding sequence after the first: small batches use a slower kernel than prefill."""
    context_ms: float
    """Reading the cached keys and values of one context token of a decoding sequence."""
    attention_ms: float
    """One (prefilled token x context token) pair."""
    microbatch: int
    """Prefilled tokens that one reading of the weights serves."""
    save_ms: float
    """Copying one token's keys and values out of the card."""
    restore_ms: float
    """Copying one token's keys and values back in."""


PRESETS = {
    # Four emulated cards of this kind are the box that the project is about: 8B, Q4, f16 KV. Fitted to published
    # llama.cpp numbers for the RTX 4090 and to the measured shape of a bigger card (decode steps grow by about
    # 0.4 ms a sequence, prefill by 0.09 ms a token, copies cost 70 us out and 30 us in a token).
    "4090": StepTimes(6.9, 0.094, 0.4, 0.00013, 5e-6, 512, 0.070, 0.030),
    # Measured: decode 3.3 ms for one sequence and 0.47 ms more for each further one; prefill of 8192 tokens 754 ms.
    "h200": StepTimes(2.8, 0.084, 0.39, 0.00003, 1.5e-6, 512, 0.065, 0.032),
    # The 135M model on one core of a small machine: what the real engine of the tests runs on.
    "cpu": StepTimes(4.0, 2.2, 0.3, 0.0005, 1e-4, 512, 0.02, 0.008),
}


def batch_ms(times: StepTimes, decoding: int, decode_context: int, prefill: int, pairs: float) -> float:
    """Milliseconds of one batch.

    Args:
        times: the card and model.
        decoding: sequences that each get one token.
        decode_context: tokens that those sequences hold, all together.
        prefill: prompt tokens computed in the same batch, of however many prompts.
        pairs: (prefilled token x token of the same prompt before it) pairs of the batch, see `attention_pairs`.

    Constants: `PRESETS`. Prefill is linear in its tokens, with one reading of the weights per microbatch. Decoding in a
    mixed batch costs what it costs alone: many tokens and few are computed by different kernels, and even so a measured
    closed loop of short chats (12 in flight, 16 slots) was slower than this model says.
    """
    milliseconds = pairs * times.attention_ms
    if prefill:
        milliseconds += math.ceil(prefill / times.microbatch) * times.fixed_ms + prefill * times.token_ms
    if decoding:
        milliseconds += times.fixed_ms + decoding * times.token_ms
        milliseconds += (decoding - 1) * times.sequence_ms + decode_context * times.context_ms
    return milliseconds


def attention_pairs(prefill: int, context: int) -> float:
    """(prefilled token x token before it) pairs of one prompt of which `context` tokens are there already."""
    return prefill * (context + prefill / 2)


def step_ms(times: StepTimes, decoding: int, decode_context: int, prefill: int, prefill_context: int) -> float:
    """Milliseconds of one batch in which at most one prompt is computed; arguments as of `batch_ms`.

    `prefill_context`: tokens of that prompt that are there already.
    """
    return batch_ms(times, decoding, decode_context, prefill, attention_pairs(prefill, prefill_context))


def prefill_ms(times: StepTimes, tokens: int, batch: int = 512) -> float:
    """Milliseconds to compute a prompt alone on the card, in batches of `batch` tokens."""
    total, done = 0.0, 0
    while done < tokens:
        size = min(batch, tokens - done)
        total += step_ms(times, 0, 0, size, done)
        done += size
    return total
