"""The model of an engine, in real time: waits for its steps and tells sinks what happened. Must not know any HTTP API.

Which slot, what is reused, what is copied and how long a step takes is the model's affair (`scheduler.simulation`). One
timer per step, not per stream. What is the emulator's own: when the leaving of a client is noticed, full contexts,
faults, and what /metrics counts.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from math import inf

from proxy.emulated.jobs import Job, Problem, Slot
from proxy.emulated.replies import Reply, Stop
from proxy.tasks import Tasks
from scheduler.simulation.contents import Tokens
from scheduler.simulation.engine import EngineModel, EngineSettings
from scheduler.simulation.jobs import Happened, Kind
from scheduler.simulation.jobs import Job as Work

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
        settings: of the model; with `single_steps`, `tells_steps` and a context.
        speed: divides every step time; infinity: no waiting at all.
        departure: how clients that left are noticed. Lazily means as llama-server does it: a stream that decodes (or
            reports progress) at its next frame; anything else only when for `quiet_s` nobody got a result of any job
            and nobody polled. A poll or a token of a neighbour restarts that wait.
        quiet_s: see above, in seconds; never divided by the speed.
        shift: whether a full context is shifted (Ollama) instead of ending the answer.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        speed: float = 1.0,
        departure: Departure = Departure.LAZY,
        quiet_s: float = 1.0,
        shift: bool = False,
    ) -> None:
        self.model: EngineModel[Tokens] = EngineModel(settings)
        self.slots = [Slot(part) for part in self.model.slots]
        self.context = settings.context
        self.counters = Counters()
        self.open_max = 0
        """Most jobs that were running or waiting at the same time."""
        self.slow_factor = 1.0
        self.extra_step_s = 0.0
        self._speed, self._departure, self._quiet_s, self._shift = speed, departure, quiet_s, shift
        self._jobs: dict[str, Job] = {}
        """All that run or wait, in the order in which they came."""
        self._arrivals: deque[Job] = deque()
        """Of these, those that came since the last step."""
        self._task_ids = 0
        self._deferred_before = 0
        # The step under way began at this time of the model and of the loop; a millisecond of it lasts so many seconds.
        self._began_ms = 0.0
        self._began_s = 0.0
        self._ms_in_s = 0.0
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
        answer = job.reply.tokens[: self._end_of(job, job.reply)[0]] if job.reply is not None else []
        job.work = Work(
            str(job.task_id),
            Tokens([*job.prompt, *answer]),
            len(job.prompt),
            job.named_slot,
            generates=job.reply is not None,
            reuses=job.reuse,
        )
        self._jobs[job.work.id] = job
        self._arrivals.append(job)
        self.open_max = max(self.open_max, self.open_jobs)
        self._wake.set()

    def leave(self, job: Job) -> None:
        """The client of a job has gone; when the engine notices is its own affair."""
        if job.over or job.gone_at is not None:
            return
        job.gone_at = self._loop.time()
        if job.leaves_queue_at_once and job.slot is None:
            self._withdraw(job)

    def polled(self) -> None:
        """Somebody was answered from the engine's own state, which restarts the quiet wait."""
        self._woken_s = self._loop.time()

    def stall(self, milliseconds: float) -> None:
        """Work on the main loop (a slot saved or restored) that the next step has to wait for."""
        self.model.stall(milliseconds, self._now_ms())

    def freeze(self, frozen: bool) -> None:
        """Stop computing while still answering, as a wedged decode loop does."""
        if frozen:
            self._moving.clear()
        else:
            self._moving.set()

    def fail_all(self, problem: Problem) -> None:
        """End every job that runs or waits, and forget what the slots and the host cache held."""
        self._deferred_before = self.deferred_max
        self.model = EngineModel(self.model.settings)
        for slot, part in zip(self.slots, self.model.slots, strict=True):
            slot.part = part
        for job in list(self._jobs.values()):
            self._fail(job, problem)

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
        return len(self._jobs)

    @property
    def running(self) -> list[Job]:
        """Jobs that have a slot."""
        return [job for job in self._jobs.values() if job.slot is not None]

    @property
    def waiting_jobs(self) -> int:
        """Jobs without a slot."""
        return sum(job.slot is None for job in self._jobs.values())

    @property
    def deferred(self) -> list[Job]:
        """Jobs that found no slot, in the order in which they will be tried."""
        return [self._jobs[work.id] for work in self.model.deferred]

    @property
    def deferred_max(self) -> int:
        """Most jobs that ever waited for a slot at the same time."""
        return max(self._deferred_before, self.model.deferred_max)

    def job_of(self, slot: Slot) -> Job | None:
        """Who runs on a slot."""
        return self._jobs.get(slot.part.job.id) if slot.part.job is not None else None

    # -- time

    async def _run(self) -> None:
        while True:
            await self._moving.wait()
            model = self.model
            due_ms = model.next_event_ms()
            if due_ms < inf:
                await self._pace(due_ms - self._began_ms)
                if model is self.model:
                    self._step(due_ms)
            elif self._arrivals:
                self._began_ms, self._began_s = self._now_ms(), self._loop.time()
                self._due_s = self._began_s  # idle time is no credit
                self._hand_over(self._began_ms)
                self._tell(model.advance(self._began_ms), self._began_s)
            else:
                self._wake.clear()
                await self._wake.wait()

    async def _pace(self, milliseconds: float) -> None:
        """Wait for the step to end. Timers are coarse, so what one step lost or gained the next one evens out."""
        now = self._loop.time()
        self._ms_in_s = self.slow_factor / self._speed / 1000
        self._due_s = max(self._due_s, now - _CATCH_UP_S) + milliseconds * self._ms_in_s + self.extra_step_s
        delay = self._due_s - now
        await asyncio.sleep(delay if delay > 0.0005 else 0)
        await self._moving.wait()

    def _now_ms(self) -> float:
        """The model's time now. While nothing computes it runs as fast as the engine does."""
        if self.model.next_event_ms() < inf or self._speed == inf:
            return self._began_ms
        return self._began_ms + (self._loop.time() - self._began_s) * 1000 * self._speed

    def _step(self, due_ms: float) -> None:
        """End a step, and so begin the next one: with what came meanwhile, without those who are noticed to be gone."""
        now = self._loop.time()
        self.counters.steps += 1
        self.counters.busy_slot_steps += len(self.model.running)
        self._notice(now, due_ms)
        self._hand_over(due_ms)
        happened = self.model.advance(due_ms)
        for kind, work, _ in happened:
            job = self._jobs.get(work.id)
            if job is not None and kind is Kind.BATCH and not job.processed:
                job.first_batch_s = self._began_s + (work.first_batch_ms - self._began_ms) * self._ms_in_s
        self._began_ms, self._began_s = due_ms, now
        self._tell(happened, now)

    def _hand_over(self, now_ms: float) -> None:
        if self._arrivals:
            self.model.submit_together([job.work for job in self._arrivals if job.work is not None], now_ms)
            self._arrivals.clear()

    # -- what happened

    def _tell(self, happened: Sequence[Happened[Tokens]], now: float) -> None:
        for kind, work, _ in happened:
            job = self._jobs.get(work.id)
            if job is None:  # a sink ended it
                continue
            job.now_s = now
            match kind:
                case Kind.STARTED:
                    self._started(job, work, now)
                case Kind.BATCH:
                    self._prefilled(job, work, now)
                case Kind.FIRST | Kind.TOKEN:
                    self._decoded(job, work, now)
                case Kind.REFUSED:
                    self._fail(job, over_context(len(job.prompt), self.context))
                case Kind.FINISHED if not work.gone:
                    self._finish(job, work, now)
                case _:
                    self._fail(job, _LEFT)

    def _started(self, job: Job, work: Work[Tokens], now: float) -> None:
        self._seat(job, work, now)
        job.cached = work.cached_tokens
        self.counters.cached_tokens += job.cached
        if job.reports_progress:
            self._woken_s = now
        job.sink.started(job)

    def _seat(self, job: Job, work: Work[Tokens], now: float) -> None:
        if work.slot is not None:
            job.slot = slot = self.slots[work.slot]
            slot.task_id, slot.params = job.task_id, job.params
        job.started_s = now

    def _prefilled(self, job: Job, work: Work[Tokens], now: float) -> None:
        self.counters.prompt_tokens += work.computed - job.evaluated
        job.processed = work.computed - work.cached_tokens
        if job.prefilled:
            job.first_token_s = now
            self.counters.prompt_s += job.prompt_ms / 1000
        if not work.gone:
            job.sink.progressed(job)

    def _decoded(self, job: Job, work: Work[Tokens], now: float) -> None:
        """One more token of an answer; computed in vain for those who are noticed to be gone."""
        job.decoded += 1
        job.last_token_s = now
        if job.reply is None or work.gone:
            return
        if self._shift and job.decoded < work.output_tokens and job.held + 1 >= self.context:
            discarded = (job.held - _KEPT_BY_SHIFT) // 2
            ids = work.content.ids
            self.model.shift(work, Tokens([*ids[:_KEPT_BY_SHIFT], *ids[_KEPT_BY_SHIFT + discarded :]]))
            job.shifted += discarded
        job.sink.said(job, job.reply.pieces[job.decoded - 1])

    def _finish(self, job: Job, work: Work[Tokens], now: float) -> None:
        if job.slot is None:  # an empty prompt: answered empty at once, as llama-server does
            self._seat(job, work, now)
        elif job.reply is not None:
            _, job.ended, job.truncated = self._end_of(job, job.reply)
        self._woken_s = now
        self._close(job)
        job.sink.finished(job)

    def _end_of(self, job: Job, reply: Reply) -> tuple[int, Stop, bool]:
        """After how many tokens an answer ends, why, and whether that is for want of context."""
        count, ending, truncated = len(reply.tokens), reply.ending, False
        if job.most >= 0 and max(1, job.most) < count:  # 0 still makes one token
            count, ending = max(1, job.most), Stop.LIMIT
        room = max(1, self.context - len(job.prompt))
        if room < count and not self._shift:
            count, ending, truncated = room, Stop.LIMIT, True
        return count, ending, truncated

    def _fail(self, job: Job, problem: Problem) -> None:
        self._close(job)
        job.sink.failed(job, problem)

    def _close(self, job: Job) -> None:
        job.over = True
        self._jobs.pop(str(job.task_id), None)
        if job in self._arrivals:
            self._arrivals.remove(job)
        if job.slot is not None:
            self.counters.output_tokens += job.decoded
            self.counters.output_s += job.output_ms / 1000
            self.counters.longest = max(self.counters.longest, job.held)

    # -- clients that leave

    def _notice(self, now: float, due_ms: float) -> None:
        """Take out whose leaving the step that ends now brings to light."""
        for job in [job for job in self._jobs.values() if job.gone_at is not None and job.slot is None]:
            if self._noticed(job, now, at_frame=False):
                self._withdraw(job)
        for work, size in self.model.served:
            job = self._jobs[work.id]
            frame = job.streams
            if (size and work.computed + size < work.prompt_tokens) or not work.output_tokens:
                frame = job.reports_progress
            if self._noticed(job, now, at_frame=frame):
                self.model.cancel(work, due_ms)
            elif frame:
                self._woken_s = now

    def _noticed(self, job: Job, now: float, *, at_frame: bool) -> bool:
        """Whether the engine notices by now that the job's client has left."""
        if job.gone_at is None:
            return False
        if at_frame or self._departure is Departure.PROMPT:
            return True
        rounds_before = max(0.0, job.gone_at - self._woken_s) // self._quiet_s
        return (now - self._woken_s) // self._quiet_s > rounds_before

    def _withdraw(self, job: Job) -> None:
        """Drop a job that has no slot."""
        if job.work is not None:
            self.model.withdraw(job.work)
        self._fail(job, _LEFT)


_LEFT = Problem(499, "cancelled", "the client has left")


def over_context(tokens: int, context: int) -> Problem:
    """The error for a prompt that does not fit a slot."""
    return Problem(
        400,
        "exceed_context_size_error",
        f"request ({tokens} tokens) exceeds the available context size ({context} tokens), try increasing it",
        {"n_prompt_tokens": tokens, "n_ctx": context},
    )
