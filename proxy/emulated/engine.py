"""Slots, the queue before them and the steps that serve them. Owns the engine's state; must not know any HTTP API.

All sequences advance together: one timer per step, not per stream. A step gives every decoding sequence one token and
fills the rest of the batch with prompt tokens, slot by slot, as llama-server does.
"""

import asyncio
from collections import deque
from enum import StrEnum

from proxy.emulated.jobs import Job, Problem
from proxy.emulated.replies import Stop
from proxy.emulated.slots import Slot, choose_slot, reusable
from proxy.emulated.step_times import StepTimes, step_ms
from proxy.tasks import Tasks

_KEPT_BY_SHIFT = 4
_CATCH_UP_S = 0.05
"""A loop that runs late makes up at most this much, so that a stall does not become a burst."""


class Departure(StrEnum):
    """How an engine notices that a client has left."""

    LAZY = "lazy"
    """llama-server: at the next token or progress frame of a stream, else in a quiet second; see `SlotEngine`."""
    PROMPT = "prompt"
    """At the end of the step in progress."""


class Counters:
    """What /metrics counts; milliseconds are summed as seconds."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.prompt_s = 0.0
        self.output_tokens = 0
        self.output_s = 0.0
        self.steps = 0
        self.busy_slot_steps = 0
        self.longest = 0


class SlotEngine:
    """An engine with a fixed number of slots and an unbounded FIFO of deferred jobs.

    Args:
        slots: parallel sequences.
        context: tokens per slot.
        times: the time model of the card.
        speed: divides every step time; infinity: no waiting at all.
        batch: tokens per step at most.
        departure: how clients that left are noticed. Lazily means as llama-server does it: a stream that decodes (or
            reports progress) at its next frame; anything else only when for `quiet_s` nobody got a result of any job
            and nobody polled. A poll or a token of a neighbour restarts that wait.
        quiet_s: see above, in seconds; never divided by the speed.
        shift: whether a full context is shifted (Ollama) instead of ending the answer.
    """

    def __init__(
        self,
        *,
        slots: int,
        context: int,
        times: StepTimes,
        speed: float = 1.0,
        batch: int = 512,
        departure: Departure = Departure.LAZY,
        quiet_s: float = 1.0,
        shift: bool = False,
    ) -> None:
        self.slots = [Slot(number) for number in range(slots)]
        self.context = context
        self.counters = Counters()
        self.deferred: deque[Job] = deque()
        self.running: list[Job] = []
        self.deferred_max = 0
        self.open_max = 0
        """Most jobs that were running or waiting at the same time."""
        self.slow_factor = 1.0
        self.extra_step_s = 0.0
        self._arrivals: deque[Job] = deque()
        self._times, self._speed, self._batch = times, speed, batch
        self._departure, self._quiet_s, self._shift = departure, quiet_s, shift
        self._uses = 0
        self._task_ids = 0
        self._stall_ms = 0.0
        self._due_s = 0.0
        self._woken_s = 0.0
        self._wake = asyncio.Event()
        self._moving = asyncio.Event()
        self._moving.set()
        self._tasks = Tasks()
        self._loop = asyncio.get_running_loop()
        self._ticking = self._tasks.start(self._run(), "emulated engine")

    # -- what the APIs ask for

    def submit(self, job: Job) -> None:
        """Queue a job; its sink is told the rest."""
        job.submitted_s = job.now_s = self._loop.time()
        job.task_id, self._task_ids = self._task_ids, self._task_ids + 1
        self._arrivals.append(job)
        self.open_max = max(self.open_max, self.open_jobs)
        self._wake.set()

    def leave(self, job: Job) -> None:
        """The client of a job has gone; when the engine notices is its own affair."""
        if job.over or job.gone_at is not None:
            return
        job.gone_at = self._loop.time()
        if job.leaves_queue_at_once and job.slot is None:
            self._drop(job)
        self._wake.set()

    def polled(self) -> None:
        """Somebody was answered from the engine's own state, which restarts the quiet wait."""
        self._woken_s = self._loop.time()

    def stall(self, milliseconds: float) -> None:
        """Work on the main loop (a slot saved or restored) that the next step has to wait for."""
        self._stall_ms += milliseconds

    def freeze(self, frozen: bool) -> None:
        """Stop computing while still answering, as a wedged decode loop does."""
        if frozen:
            self._moving.clear()
        else:
            self._moving.set()

    def fail_all(self, problem: Problem) -> None:
        """End every job that runs or waits, and forget what the slots held."""
        for job in [*self._arrivals, *self.deferred, *self.running]:  # waiting ones first: none may start
            self._close(job)
            job.sink.failed(job, problem)
        for slot in self.slots:
            slot.tokens = []
            slot.busy = False

    def stop(self) -> None:
        """Stop computing at once; open jobs hear nothing more."""
        self._ticking.cancel()

    async def close(self) -> None:
        """The same, and wait for it."""
        await self._tasks.close()

    # -- what can be seen

    @property
    def open_jobs(self) -> int:
        """Jobs that run or wait."""
        return len(self.running) + len(self.deferred) + len(self._arrivals)

    @property
    def waiting_jobs(self) -> int:
        """Jobs without a slot."""
        return len(self.deferred) + len(self._arrivals)

    def job_of(self, slot: Slot) -> Job | None:
        """Who runs on a slot."""
        return next((job for job in self.running if job.slot is slot), None)

    # -- steps

    async def _run(self) -> None:
        while True:
            await self._moving.wait()
            self._sweep_waiting()
            self._place_arrivals()
            if not self.running:
                self._wake.clear()
                if not self._arrivals:
                    await self._wake.wait()
                    self._due_s = self._loop.time()  # idle time is no credit
                continue
            await self._step()

    async def _step(self) -> None:
        decoding = [job for job in self.running if job.prefilled]
        room = self._batch - len(decoding)
        prefilling: list[tuple[Job, int]] = []
        for slot in self.slots:
            job = self.job_of(slot) if slot.busy and room > 0 else None
            if job is not None and not job.prefilled:
                size = min(room, len(job.prompt) - job.evaluated)
                prefilling.append((job, size))
                room -= size
        milliseconds = step_ms(
            self._times,
            len(decoding),
            sum(job.held for job in decoding),
            sum(size for _, size in prefilling),
            sum(job.evaluated for job, _ in prefilling),
        )
        await self._pace(milliseconds * self.slow_factor + self._stall_ms)
        self._stall_ms = 0.0
        now = self._loop.time()
        self.counters.steps += 1
        self.counters.busy_slot_steps += len(self.running)
        for job in decoding:
            self._advance(job, now)
        for job, size in prefilling:
            self._prefilled(job, size, now)

    async def _pace(self, milliseconds: float) -> None:
        """Wait for the step to end. Timers are coarse, so what one step lost or gained the next one evens out."""
        now = self._loop.time()
        self._due_s = max(self._due_s, now - _CATCH_UP_S) + milliseconds / self._speed / 1000 + self.extra_step_s
        delay = self._due_s - now
        await asyncio.sleep(delay if delay > 0.0005 else 0)
        await self._moving.wait()

    def _prefilled(self, job: Job, size: int, now: float) -> None:
        if job.over:
            return
        job.now_s = now
        job.processed += size
        self.counters.prompt_tokens += size
        if job.reports_progress:
            if self._noticed(job, now, at_frame=True):
                self._drop(job)
                return
            self._woken_s = now
        elif self._noticed(job, now, at_frame=False):
            self._drop(job)
            return
        if job.prefilled:
            job.first_token_s = now
            self.counters.prompt_s += job.prompt_ms / 1000
        job.sink.progressed(job)
        if job.prefilled and not job.over:
            if job.reply is None:
                self._finish(job, Stop.NONE, now)
            else:
                self._advance(job, now)

    def _advance(self, job: Job, now: float) -> None:
        """One more token of an answer."""
        if job.over or job.reply is None:
            return
        if self._noticed(job, now, at_frame=job.streams):
            self._drop(job)
            return
        job.decoded += 1
        job.now_s = job.last_token_s = now
        if job.streams:
            self._woken_s = now
        reply = job.reply
        last = job.decoded >= len(reply.tokens)
        ending = reply.ending if last else Stop.NONE
        if not last and 0 <= job.most <= job.decoded:  # 0 still makes one token
            ending = Stop.LIMIT
        elif not last and job.held + 1 >= self.context:
            if self._shift:
                job.shifted += (job.held - _KEPT_BY_SHIFT) // 2
            else:
                ending, job.truncated = Stop.LIMIT, True
        job.sink.said(job, reply.pieces[job.decoded - 1])
        if ending is not Stop.NONE and not job.over:
            self._finish(job, ending, now)

    def _noticed(self, job: Job, now: float, *, at_frame: bool) -> bool:
        """Whether the engine notices by now that the job's client has left."""
        if job.gone_at is None:
            return False
        if at_frame or self._departure is Departure.PROMPT:
            return True
        rounds_before = max(0.0, job.gone_at - self._woken_s) // self._quiet_s
        return (now - self._woken_s) // self._quiet_s > rounds_before

    # -- places

    def _place_arrivals(self) -> None:
        while self._arrivals:
            job = self._arrivals.popleft()
            if not self._place(job):
                self.deferred.append(job)
                self.deferred_max = max(self.deferred_max, len(self.deferred))

    def _place(self, job: Job) -> bool:
        slot = choose_slot(self.slots, job.prompt, job.named_slot)
        if slot is None:
            return False
        now = self._loop.time()
        if len(job.prompt) >= self.context:
            self._close(job)
            job.sink.failed(job, over_context(len(job.prompt), self.context))
            return True
        job.cached = reusable(slot, job.prompt) if job.reuse else 0
        self.counters.cached_tokens += job.cached
        job.slot, slot.busy = slot, True
        slot.task_id, slot.params = job.task_id, job.params
        job.started_s = job.now_s = now
        self.running.append(job)
        if job.reports_progress:
            self._woken_s = now
        if not job.prompt:  # nothing to compute: answered empty, as llama-server does
            self._finish(job, Stop.NONE, now)
        else:
            job.sink.started(job)
        return True

    def _sweep_waiting(self) -> None:
        now = self._loop.time()
        for job in [*self.deferred, *self._arrivals]:
            if self._noticed(job, now, at_frame=False):
                self._drop(job)

    def _finish(self, job: Job, ending: Stop, now: float) -> None:
        job.ended = ending
        job.now_s = now
        self._woken_s = now
        self._close(job)
        job.sink.finished(job)

    def _drop(self, job: Job) -> None:
        self._close(job)
        job.sink.failed(job, Problem(499, "cancelled", "the client has left"))

    def _close(self, job: Job) -> None:
        """Take a job out; its slot keeps what was computed and the longest waiting job is tried on it."""
        job.over = True
        if job.slot is None:
            for queue in (self.deferred, self._arrivals):
                if job in queue:
                    queue.remove(job)
            return
        slot = job.slot
        self.running.remove(job)
        answer = job.reply.tokens[: max(0, job.decoded - 1)] if job.reply is not None else []
        held = job.prompt[: job.evaluated] + answer
        slot.tokens = held[:_KEPT_BY_SHIFT] + held[_KEPT_BY_SHIFT + job.shifted :] if job.shifted else held
        slot.busy = False
        self._uses += 1
        slot.last_used = self._uses
        self.counters.output_tokens += job.decoded
        self.counters.output_s += job.output_ms / 1000
        self.counters.longest = max(self.counters.longest, len(slot.tokens))
        self._wake.set()
        self._try_deferred(slot)

    def _try_deferred(self, slot: Slot) -> None:
        """Exactly one waiting job is tried per freed slot: one that is bound to it, else the first.

        A first one that is bound to another, busy slot goes to the back and the freed slot stays idle: so does the
        real engine, and whoever names slots has to know.
        """
        if not self.deferred:
            return
        job = next((job for job in self.deferred if job.named_slot == slot.id), self.deferred[0])
        self.deferred.remove(job)
        if not self._place(job):
            self.deferred.append(job)


def over_context(tokens: int, context: int) -> Problem:
    """The error for a prompt that does not fit a slot."""
    return Problem(
        400,
        "exceed_context_size_error",
        f"request ({tokens} tokens) exceeds the available context size ({context} tokens), try increasing it",
        {"n_prompt_tokens": tokens, "n_ctx": context},
    )
