"""llama-server in virtual time: slots, the queue before them and the steps that serve them. A pure object that is told
the time, in milliseconds on any scale; it serves a simulation that jumps and an emulator that waits alike.

A step gives every decoding sequence one token and fills the rest of the batch with prompt tokens, slot by slot. While
nothing but decoding goes on, steps differ only in the growing context, so that many of them are one closed formula:
time costs nothing, only what happens does.
"""

from collections import deque
from collections.abc import Sequence
from math import inf, sqrt
from typing import Generic, TypeVar

import msgspec

from scheduler import slot_rules
from scheduler.simulation.contents import Content
from scheduler.simulation.host_cache import HostCache
from scheduler.simulation.jobs import Happened, Job, Kind, Slot
from scheduler.simulation.step_times import PRESETS, StepTimes, attention_pairs, batch_ms

C = TypeVar("C", bound=Content)


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One engine on one card."""

    times: StepTimes = PRESETS["4090"]
    gpu_name: str | None = "NVIDIA GeForce RTX 4090"
    """What routers are told of the card; None: nothing, as of an engine on another machine."""
    slots: int = 16
    """Parallel sequences: `--parallel`."""
    batch: int = 512
    """Tokens per step at most: `--batch-size`."""
    context: int = 0
    """Tokens of one slot: a prompt as long as that is refused once it has its slot; 0: no limit."""
    host_tokens: int = 0
    """What the host prompt cache may hold: `--cache-ram`; 0: off. 8 GiB are 65,536 tokens of an 8B model's f16 KV."""
    copies_idle: bool = False
    """Every task first copies what idle slots hold to the host cache: `--cache-idle-slots`."""
    unified: bool = False
    """One KV pool for all slots: `--kv-unified`. Idle slots that were copied are then cleared."""
    single_steps: bool = False
    """Each decoding step is an event of its own: for emulators, which stream every token."""
    tells_steps: bool = False
    """Each batch of a prompt is told, and with `single_steps` each token."""


class EngineModel(Generic[C]):
    """An engine with a fixed number of slots and an unbounded FIFO before them.

    What is asked for while a step is under way takes effect when it ends, as in the real one. `advance` must be called
    no later than `next_event_ms`, and before anything is asked for at a later time.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.slots: list[Slot[C]] = [Slot(number) for number in range(settings.slots)]
        self.deferred: deque[Job[C]] = deque()
        """Jobs without a slot. Only grows where somebody sends more than there are slots, or names a busy one."""
        self.host_cache: HostCache[C] = HostCache(settings.host_tokens)
        self.deferred_max = 0
        self.copied_ms = 0.0
        """Time spent on copies to and from the host cache, in which nothing else moved."""
        self._arrivals: deque[Job[C]] = deque()
        self._decoding: list[Job[C]] = []
        self._decode_context = 0
        self._prompts = 0
        """Running jobs without a first token."""
        self._leaving = False
        self._steps_done = 0
        self._uses = 0
        self._stall_ms = 0.0
        self._free_ms = -inf
        """Until then the main loop of an idle engine is taken."""
        self._happened: list[Happened[C]] = []
        # The work under way: so many equal-looking steps, of which the first takes so long and each further one more.
        self._start_ms = 0.0
        self._steps = 0
        self._first_ms = 0.0
        self._growth_ms = 0.0
        self._prefilling: list[tuple[Job[C], int]] = []
        self._next_ms = inf

    # What is asked for

    def submit(self, job: Job[C], now_ms: float) -> None:
        """Queue a job: it starts at the end of the step under way if a slot is idle, else when one falls free."""
        self.submit_together([job], now_ms)

    def submit_together(self, jobs: Sequence[Job[C]], now_ms: float) -> None:
        """Queue several jobs that come as one: an idle engine has them all in its first step."""
        for job in jobs:
            job.submitted_ms = now_ms
            self._arrivals.append(job)
        self._interrupt(now_ms)

    def cancel(self, job: Job[C], now_ms: float) -> None:
        """Nobody wants the answer any more: at the end of the step under way its slot is free."""
        job.gone = self._leaving = True
        self._interrupt(now_ms)

    def withdraw(self, job: Job[C]) -> bool:
        """Take a job out that has no slot: at once, and nothing is told of it. False: it does not wait."""
        for queue in (self._arrivals, self.deferred):
            if job in queue:
                queue.remove(job)
                return True
        return False

    def shift(self, job: Job[C], content: C) -> None:
        """Make room in a full context: `content` is that of a job that decodes, without what its slot discards."""
        discarded = job.content.tokens - content.tokens
        job.content = content
        job.shifted += discarded
        self._decode_context -= discarded

    def stall(self, milliseconds: float, now_ms: float) -> None:
        """Work on the main loop (a slot saved or restored by hand), done at the end of the step under way."""
        if self._next_ms == inf:
            self._free_ms = max(self._free_ms, now_ms) + milliseconds
        else:
            self._stall_ms += milliseconds
            self._interrupt(now_ms)

    def next_event_ms(self) -> float:
        """When `advance` has to be called next; infinity: the engine is idle."""
        return self._next_ms

    def advance(self, to_ms: float) -> Sequence[Happened[C]]:
        """Let time pass; returns what happened, in order."""
        while self._next_ms <= to_ms:
            self._end_work()
        happened = self._happened
        if happened:
            self._happened = []
        return happened

    # What can be seen

    @property
    def running(self) -> list[Job[C]]:
        """Jobs that have a slot, in order of slots."""
        return [slot.job for slot in self.slots if slot.job is not None]

    @property
    def served(self) -> list[tuple[Job[C], int]]:
        """Whom the step under way serves: jobs that decode, with 0, then those that get so much of their prompt."""
        return [(job, 0) for job in self._decoding] + self._prefilling

    def produced(self, job: Job[C]) -> int:
        """Tokens of its answer that a running job made in the steps that are over (see `single_steps`)."""
        if job.first_token_ms != job.first_token_ms:  # NaN
            return 0
        return job.output_tokens - max(0, job.last_step - self._steps_done)

    @property
    def open_jobs(self) -> int:
        """Jobs that run or wait."""
        return len(self._decoding) + self._prompts + len(self.deferred) + len(self._arrivals)

    # Steps

    def _interrupt(self, now_ms: float) -> None:
        """Let the work under way end with the step that is under way."""
        if self._next_ms == inf:
            self._begin(now_ms)
        elif self._steps > 1:
            self._steps = self._complete_steps(now_ms) + 1
            self._next_ms = self._start_ms + self._duration_ms(self._steps)

    def _duration_ms(self, steps: int) -> float:
        return steps * self._first_ms + self._growth_ms * (steps * (steps - 1) / 2)

    def _complete_steps(self, now_ms: float) -> int:
        """Steps of the work under way that are over: the inverse of `_duration_ms`, then rounding mended."""
        elapsed_ms = now_ms - self._start_ms
        if elapsed_ms <= 0:
            return 0
        growth_ms, linear_ms = self._growth_ms, self._first_ms - self._growth_ms / 2
        if growth_ms > 0:
            steps = int((sqrt(linear_ms * linear_ms + 2 * growth_ms * elapsed_ms) - linear_ms) / growth_ms)
        else:
            steps = int(elapsed_ms / linear_ms)
        while steps and self._duration_ms(steps) > elapsed_ms:
            steps -= 1
        while self._duration_ms(steps + 1) <= elapsed_ms:
            steps += 1
        return min(steps, self._steps - 1)

    def _begin(self, now_ms: float) -> None:
        """Between two steps: place what came, then start the next work."""
        if self._leaving:
            self._drop_leaving(now_ms)
        while self._arrivals:
            job = self._arrivals.popleft()
            if not self._place(job, now_ms):
                self.deferred.append(job)
                self.deferred_max = max(self.deferred_max, len(self.deferred))
        decoding, times = len(self._decoding), self.settings.times
        self._prefilling = []
        if not decoding and not self._prompts:
            self._next_ms = inf
            return
        self._start_ms = max(now_ms, self._free_ms) + self._stall_ms
        self._stall_ms = 0.0
        pairs, prefill = 0.0, 0
        if self._prompts:
            room = self.settings.batch - decoding
            for job in self.running:
                if room <= 0:
                    break
                if job.computed < job.prompt_tokens:
                    size = min(room, job.prompt_tokens - job.computed)
                    if job.first_batch_ms != job.first_batch_ms:  # NaN: its first batch
                        job.first_batch_ms = self._start_ms
                    self._prefilling.append((job, size))
                    pairs += attention_pairs(size, job.computed)
                    prefill += size
                    room -= size
        self._first_ms = batch_ms(times, decoding, self._decode_context, prefill, pairs)
        self._growth_ms = 0.0
        self._steps = 1
        if not self._prefilling and not self.settings.single_steps:
            self._growth_ms = decoding * times.context_ms
            self._steps = min([job.last_step for job in self._decoding]) - self._steps_done
        self._next_ms = self._start_ms + self._duration_ms(self._steps)

    def _end_work(self) -> None:
        now_ms, decoding = self._next_ms, self._decoding
        self._steps_done += self._steps
        self._decode_context += self._steps * len(decoding)
        finished = [job for job in decoding if job.last_step <= self._steps_done]
        if self.settings.tells_steps:
            self._happened += [Happened(Kind.TOKEN, job, now_ms) for job in decoding]
        for job, size in self._prefilling:
            job.computed += size
            if self.settings.tells_steps:
                self._happened.append(Happened(Kind.BATCH, job, now_ms))
            if job.computed < job.prompt_tokens:
                continue
            if not job.output_tokens:
                finished.append(job)
                continue
            job.first_token_ms = now_ms
            self._happened.append(Happened(Kind.FIRST, job, now_ms))
            self._prompts -= 1
            job.last_step = self._steps_done + job.output_tokens - 1
            decoding.append(job)
            self._decode_context += job.prompt_tokens
            if job.output_tokens == 1:
                finished.append(job)
        for job in finished:
            self._close(job, now_ms, Kind.FINISHED)
        self._begin(now_ms)

    # Slots

    def _place(self, job: Job[C], now_ms: float) -> bool:
        """Give a job its slot, by the rules of `slot_rules`; False: it must wait."""
        prompt, tokens = job.prompt, job.prompt_tokens
        named = job.named_slot is not None and 0 <= job.named_slot < len(self.slots)
        idle = [slot for slot in self.slots if slot.job is None]
        if named:
            idle = [slot for slot in idle if slot.id == job.named_slot]
        if not idle:
            return False
        commons = {slot.id: 0 if slot.content is None else slot.content.common(prompt) for slot in idle}
        choices = [(slot.id, commons[slot.id], slot.held, slot.last_used) for slot in idle]
        slot = self.slots[slot_rules.choose(choices, tokens)]
        job.slot = slot.id
        job.started_ms = now_ms
        if not tokens or 0 < self.settings.context <= tokens:  # over before anything of it is computed
            job.ended_ms = now_ms
            self._happened.append(Happened(Kind.REFUSED if tokens else Kind.FINISHED, job, now_ms))
            return True
        common = commons[slot.id]
        if self.settings.host_tokens:
            common = self._copy(slot, job, common, named=named)
        job.cached_tokens = job.computed = slot_rules.reusable(common, tokens) if job.reuses else 0
        slot.job = job
        self._prompts += 1
        self._happened.append(Happened(Kind.STARTED, job, now_ms))
        return True

    def _copy(self, slot: Slot[C], job: Job[C], common: int, *, named: bool) -> int:
        """What a new task moves between the slots and the host cache; returns what its slot has in common then."""
        saved = restored = 0
        if job.output_tokens and slot_rules.exchanges(common, slot.held, job.prompt_tokens, named=named):
            if slot.content is not None:
                saved += self.host_cache.save(slot.content)
            better = self.host_cache.take_better(job.prompt, common, slot.held)
            if better is not None:
                restored = better.tokens
                slot.content = better
                common = better.common(job.prompt)
        if self.settings.copies_idle:
            for other in self.slots:
                if other is not slot and other.job is None and other.content is not None:
                    saved += self.host_cache.save(other.content)
                    if self.settings.unified:
                        other.content = None
        milliseconds = saved * self.settings.times.save_ms + restored * self.settings.times.restore_ms
        self.copied_ms += milliseconds
        self._stall_ms += milliseconds
        return common

    def _close(self, job: Job[C], now_ms: float, kind: Kind) -> None:
        """Take a running job out; its slot keeps what was computed, and a waiting job is tried on it."""
        job.ended_ms = now_ms
        assert job.slot is not None  # noqa: S101 - only running jobs are closed
        slot = self.slots[job.slot]
        slot.job = None
        produced = self.produced(job)
        if produced:
            held = slot_rules.held_after(job.prompt_tokens, produced) - job.shifted
            self._decoding.remove(job)
            self._decode_context -= held
        else:
            held = job.computed
            self._prompts -= 1
        slot.content = job.content.first(held)
        self._uses += 1
        slot.last_used = self._uses
        self._happened.append(Happened(kind, job, now_ms))
        self._try_waiting(slot, now_ms)

    def _try_waiting(self, slot: Slot[C], now_ms: float) -> None:
        """Try exactly one waiting job on a freed slot: one that is bound to it, else the longest waiting one.

        If that one is bound to another, busy slot, it goes to the back and the freed slot stays idle: so does the real
        engine, and whoever names slots has to know. One that is over at once frees the slot again for the next.
        """
        while self.deferred:
            waiting = next((each for each in self.deferred if each.named_slot == slot.id), self.deferred[0])
            self.deferred.remove(waiting)
            if not self._place(waiting, now_ms):
                self.deferred.append(waiting)
                return
            if waiting.ended_ms != waiting.ended_ms:  # NaN: it runs
                return

    def _drop_leaving(self, now_ms: float) -> None:
        self._leaving = False
        for queue in (self._arrivals, self.deferred):  # waiting ones first: none of them may start
            for job in [job for job in queue if job.gone]:
                queue.remove(job)
                job.ended_ms = now_ms
                self._happened.append(Happened(Kind.CANCELLED, job, now_ms))
        for job in self.running:
            if job.gone:
                self._close(job, now_ms, Kind.CANCELLED)
