"""How long things take, learned from what answers report. Owns the numbers; must not know who is asked for what.

A prior (`priors`) gives the shape, answers move it. Prefill has three rates, each corrected in proportion to its share
of the time that was predicted: normalised least mean squares on the logarithm, so that rates stay positive and a sample
counts alike whatever its size. How single values are learned is in `learning`.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from math import exp, log
from typing import TypeGuard

import msgspec

from scheduler.domain import Measured
from scheduler.learning import Gain, Mean, Steps, gain_of_time, keep
from scheduler.picture import MeanPicture, PairPicture, Picture
from scheduler.priors import BATCH_TOKENS, Rates, rates_for

KEPT = 512
"""(model, backend) pairs, and models, that are remembered: the latest."""
KEPT_ANSWERS = 4096
"""(model, tenant, limit) triples whose answers' lengths are remembered: the latest."""
PRIOR_OUTPUT_TOKENS = 256.0
"""Length of an answer that nothing is known about: of the order of the means of public chat traces."""
PRIOR_TOKENS_PER_BYTE = 0.25
"""About 4 bytes of English per token."""
LEAST_OUTPUT_TOKENS = 8
"""Shorter answers tell nothing about steps."""
LEAST_PROMPT_BYTES = 64
"""Shorter prompts are mostly template, and tell nothing about tokens per byte."""
RAISE_BELOW = 0.85
"""Share of the target below which a running limit is raised; it is lowered above the target itself."""

_LEAST, _MOST = 1e-3, 1e9  # of all that is measured; NaN fails both comparisons


class EstimateRow(msgspec.Struct, frozen=True):
    """What is believed of one model on one backend, for `status`."""

    backend_id: str
    model: str
    prefill_tokens_per_s: float
    """Of a prompt of 1024 tokens, nothing cached."""
    step_ms_1: float
    """Time per output token, one request running."""
    step_ms_at_limit: float
    """The same with as many running as the backend's running limit allows."""
    limit: int
    """That limit."""
    copy_ms: float
    output_tokens: float
    """Of any tenant's answers."""
    tokens_per_byte: float
    samples: int
    """Answers that told times. 0: all is prior."""
    learned_s_ago: float | None
    """Since the last of them came; None: none did."""
    source: str
    """Of the prior."""


class _Pair:
    """What is believed of one model on one backend."""

    __slots__ = (
        "batch_ms", "copy_gain", "copy_ms", "learned_s", "limit", "pair_ms", "prefill_gain", "rates", "samples",
        "steps", "token_ms",
    )  # fmt: skip

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.batch_ms = rates.batch_ms
        self.token_ms = rates.token_ms
        self.pair_ms = rates.pair_ms
        self.prefill_gain = gain_of_time()
        self.steps = Steps(rates)
        self.copy_ms = 0.0
        self.copy_gain = Gain(1.0, 500.0)
        self.limit = 0
        self.samples = 0
        self.learned_s: float | None = None

    def prefill_ms(self, fresh: int, cached: int) -> float:
        return -(-fresh // BATCH_TOKENS) * self.batch_ms + fresh * (self.token_ms + self.pair_ms * (cached + fresh / 2))

    def learn_prefill(self, fresh: int, cached: int, sample_ms: float) -> None:
        """Correct the three rates so that together they move by what the sample is worth."""
        predicted_ms = self.prefill_ms(fresh, cached)
        if predicted_ms < _LEAST:
            return
        batch = -(-fresh // BATCH_TOKENS) * self.batch_ms / predicted_ms
        token = fresh * self.token_ms / predicted_ms
        pair = fresh * self.pair_ms * (cached + fresh / 2) / predicted_ms
        change = self.prefill_gain.correction(log(sample_ms / predicted_ms)) / (batch**2 + token**2 + pair**2)
        self.batch_ms = _held(self.batch_ms * exp(change * batch), self.rates.batch_ms)
        self.token_ms = _held(self.token_ms * exp(change * token), self.rates.token_ms)
        self.pair_ms = _held(self.pair_ms * exp(change * pair), self.rates.pair_ms)

    def picture(self, model: str, now_s: float) -> PairPicture:
        factors, gains = self.steps.picture()
        return PairPicture(
            model, self.rates, self.batch_ms, self.token_ms, self.pair_ms, self.copy_ms, self.prefill_gain.picture(),
            self.copy_gain.picture(), factors, gains, self.limit, self.samples,
            None if self.learned_s is None else now_s - self.learned_s,
        )  # fmt: skip

    @staticmethod
    def of_picture(told: PairPicture, now_s: float) -> "_Pair":
        pair = _Pair(told.rates)
        pair.batch_ms, pair.token_ms, pair.pair_ms, pair.copy_ms = (
            told.batch_ms, told.token_ms, told.pair_ms, told.copy_ms,
        )  # fmt: skip
        pair.prefill_gain.restore(told.prefill)
        pair.copy_gain.restore(told.copies)
        pair.steps.restore(told.factors, told.gains)
        pair.limit, pair.samples = told.limit, told.samples
        pair.learned_s = None if told.learned_s_ago is None else now_s - told.learned_s_ago
        return pair

    def learn_copy(self, sample_ms: float) -> None:
        self.copy_ms = max(0.0, self.copy_ms + self.copy_gain.correction(sample_ms - self.copy_ms))


def _held(rate: float, prior: float) -> float:
    """Within a factor of 1000 of the prior: what no sample pins down must not drift away."""
    return max(prior / 1000, min(prior * 1000, rate))


def _usable(value: float | None) -> TypeGuard[float]:
    return value is not None and _LEAST <= value < _MOST


class Estimates:
    """What is believed of every model on every backend. Reads never fail: what is unknown has a prior."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[tuple[str, str], _Pair] = OrderedDict()
        self._backends: OrderedDict[str, _Pair] = OrderedDict()
        self._unknown = _Pair(rates_for(""))
        self._outputs: OrderedDict[tuple[str, str | None, int | None], Mean] = OrderedDict()
        self._tokens_per_byte: OrderedDict[str, Mean] = OrderedDict()

    def prior(self, backend_id: str, model: str, rates: Rates) -> None:
        """What to assume of a model on a backend; an empty model: of all those of the backend that have no prior.

        What was learned stays: a prior only counts until the first answer that told times.
        """
        if not model:
            keep(self._backends, backend_id, _Pair(rates), KEPT)
            return
        pair = self._pairs.get((backend_id, model))
        if pair is None or (not pair.samples and pair.rates != rates):
            keep(self._pairs, (backend_id, model), _Pair(rates), KEPT)

    def prefill_ms(self, backend_id: str, model: str, fresh_tokens: int, cached_tokens: int = 0) -> float:
        """Milliseconds to compute `fresh_tokens` of a prompt after `cached_tokens`, alone on the card.

        For U fresh and C cached tokens: ceil(U/512) * batch + U * token + U * (C + U/2) * pair. At most 0 tokens: 0.
        """
        if fresh_tokens <= 0:
            return 0.0
        pair = self._pairs.get((backend_id, model)) or self._fallback(backend_id)
        return pair.prefill_ms(fresh_tokens, cached_tokens)

    def step_ms(self, backend_id: str, model: str, running: int) -> float:
        """Milliseconds per output token when `running` requests run; never falling with that number."""
        return (self._pairs.get((backend_id, model)) or self._fallback(backend_id)).steps.at(running)

    def copy_ms(self, backend_id: str, model: str) -> float:
        """Milliseconds that a request waits for copies before it is computed; 0 until that was measured."""
        return (self._pairs.get((backend_id, model)) or self._fallback(backend_id)).copy_ms

    def output_tokens(self, model: str, tenant: str, limit: int | None = None) -> float:
        """Expected length of an answer in tokens, at least 1 and at most the client's `limit`."""
        mean = PRIOR_OUTPUT_TOKENS
        for key in _answers(model, tenant, limit):
            known = self._outputs.get(key)
            if known is not None:
                mean = known.value
        return max(1.0, mean if limit is None else min(mean, limit))

    def tokens_per_byte(self, model: str) -> float:
        """Tokens per byte of canonical prompt."""
        known = self._tokens_per_byte.get(model)
        return known.value if known is not None else PRIOR_TOKENS_PER_BYTE

    def running_limit(self, backend_id: str, model: str, slots: int, token_target_ms: float) -> int:
        """The most requests, at most `slots` and at least 1, that keep the time per token at or below the target.

        It remembers its last answer: it falls once that would miss the target, and rises only to what keeps
        `RAISE_BELOW` of it, so that noise does not move it to and fro.
        """
        pair = self._pairs.get((backend_id, model)) or self._fallback(backend_id)
        numbers = range(1, slots + 1)
        most = max(1, bisect_right(numbers, token_target_ms, key=pair.steps.at))
        sure = bisect_right(numbers, token_target_ms * RAISE_BELOW, key=pair.steps.at)
        pair.limit = min(max(pair.limit, sure), most) if pair.limit else most
        return pair.limit

    def learn(
        self, backend_id: str, model: str, tenant: str, prompt_bytes: int, measured: Measured, running: int,
        now_s: float, limit: int | None = None,
    ) -> None:  # fmt: skip
        """Take in what one answer reported. What it does not tell, or cannot be, is passed over.

        Args:
            backend_id: where it ran.
            model: canonical name.
            tenant: whose request it was.
            prompt_bytes: of the canonical prompt, the unit of `tokens_per_byte`; 0: unknown.
            measured: `first_byte_ms` only counts where the answer was streamed. One that came at once, and would look
                like a copy as long as the answer itself, is passed over.
            running: requests that ran there meanwhile, this one included.
            now_s: the time.
            limit: the client's own limit of the answer's length.
        """
        pair = self._pairs.get((backend_id, model))
        if pair is None:
            pair = _Pair(self._fallback(backend_id).rates)
        keep(self._pairs, (backend_id, model), pair, KEPT)
        if _learn_times(pair, measured, running):
            pair.samples += 1
            pair.learned_s = now_s
        if _usable(measured.output_tokens):
            self._learn_output(model, tenant, limit, measured.output_tokens)
        tokens = measured.prompt_tokens
        # A token has a byte at least, apart from those of images: their bytes are not in the canonical prompt.
        if tokens is not None and prompt_bytes >= LEAST_PROMPT_BYTES and 1 <= tokens <= prompt_bytes:
            known = self._tokens_per_byte.get(model) or Mean(PRIOR_TOKENS_PER_BYTE)
            keep(self._tokens_per_byte, model, known, KEPT)
            known.learn(tokens / prompt_bytes)

    def forget(self, backend_id: str) -> None:
        """A backend is gone for good."""
        self._backends.pop(backend_id, None)
        for key in [key for key in self._pairs if key[0] == backend_id]:
            del self._pairs[key]

    def pairs(self, backend_id: str, now_s: float) -> tuple[PairPicture, ...]:
        """What is believed of a backend's models, for another proxy."""
        return tuple([pair.picture(model, now_s) for (of, model), pair in self._pairs.items() if of == backend_id])

    def answers(self) -> tuple[tuple[str, str | None, int | None, MeanPicture], ...]:
        """What is believed of the lengths of answers, for another proxy."""
        return tuple([(*key, mean.picture()) for key, mean in self._outputs.items()])

    def ratios(self) -> tuple[tuple[str, MeanPicture], ...]:
        """Tokens per byte by model, for another proxy."""
        return tuple([(model, mean.picture()) for model, mean in self._tokens_per_byte.items()])

    def restore_pairs(self, backend_id: str, pairs: tuple[PairPicture, ...], now_s: float) -> None:
        """Go on with a backend from where another proxy is."""
        for told in pairs:
            keep(self._pairs, (backend_id, told.model), _Pair.of_picture(told, now_s), KEPT)

    def restore(self, picture: Picture) -> None:
        """Go on with all that is no backend's from where another proxy is."""
        for model, tenant, size, mean in picture.outputs:
            keep(self._outputs, (model, tenant, size), Mean(1.0).restore(mean), KEPT_ANSWERS)
        for model, mean in picture.tokens_per_byte:
            keep(self._tokens_per_byte, model, Mean(1.0).restore(mean), KEPT)

    def table(self, now_s: float, limits: Mapping[str, int]) -> list[EstimateRow]:
        """What is believed, by backend and model; `limits`: the running limit of each backend."""
        return [
            self._row(backend_id, model, pair, now_s, limits.get(backend_id, 1))
            for (backend_id, model), pair in sorted(self._pairs.items(), key=_name)
        ]

    def _fallback(self, backend_id: str) -> _Pair:
        return self._backends.get(backend_id, self._unknown)

    def _learn_output(self, model: str, tenant: str, limit: int | None, tokens: float) -> None:
        """Of the model, of the tenant, of the tenant with such a limit: each new one begins where the wider one is."""
        wider = PRIOR_OUTPUT_TOKENS
        for key in _answers(model, tenant, limit):
            known = self._outputs.get(key) or Mean(wider)
            wider = known.value
            keep(self._outputs, key, known, KEPT_ANSWERS)
            known.learn(tokens)

    def _row(self, backend_id: str, model: str, pair: _Pair, now_s: float, limit: int) -> EstimateRow:
        output = self._outputs.get((model, None, None))
        ago_s = None if pair.learned_s is None else now_s - pair.learned_s
        return EstimateRow(
            backend_id, model, 1024 / max(_LEAST, pair.prefill_ms(1024, 0)) * 1000, pair.steps.at(1),
            pair.steps.at(limit), limit, pair.copy_ms, output.value if output else PRIOR_OUTPUT_TOKENS,
            self.tokens_per_byte(model), pair.samples, ago_s, pair.rates.source,
        )  # fmt: skip


def _learn_times(pair: _Pair, measured: Measured, running: int) -> bool:
    """Whether there was anything to learn."""
    prompt, cached, output = measured.prompt_tokens, measured.cached_tokens, measured.output_tokens
    prompt_ms, output_ms, first_ms = measured.prompt_ms, measured.output_ms, measured.first_byte_ms
    learned = False
    if prompt is not None and cached is not None and 0 <= cached < prompt < _MOST and _usable(prompt_ms):
        pair.learn_prefill(prompt - cached, cached, prompt_ms)
        learned = True
    if output is not None and LEAST_OUTPUT_TOKENS <= output < _MOST and _usable(output_ms):
        step_ms = output_ms / (output - 1)
        if _usable(step_ms):
            pair.steps.learn(running, step_ms)
            learned = True
    if output is not None and _usable(first_ms) and _usable(prompt_ms):
        rest_ms = max(0.0, first_ms - prompt_ms)
        if output <= 1 or (output_ms is not None and rest_ms < output_ms):
            pair.learn_copy(rest_ms)
            learned = True
    return learned


def _answers(model: str, tenant: str, limit: int | None) -> tuple[tuple[str, str | None, int | None], ...]:
    """Keys of lengths of answers, the widest first. Limits within a factor of four count as one."""
    size = -1 if limit is None else max(limit, 0).bit_length() // 2
    return (model, None, None), (model, tenant, None), (model, tenant, size)


def _name(item: tuple[tuple[str, str], _Pair]) -> tuple[str, str]:
    return item[0]
