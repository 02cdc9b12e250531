"""The engines as the world plays them: literal tokens in slots, who uses each slot, and what is being worked on.

An engine takes the slot that it is told; otherwise it chooses by `scheduler.slot_rules.choose`, as the real one does.
"""

from collections.abc import Collection

import msgspec

from scheduler import effects, slot_rules
from scheduler.core import Scheduler
from scheduler.domain import Backend, Engine, Measured, Report, Request, SlotState
from scheduler.policy import Policy
from tests.scheduler.prompts import Message, Tokens, common_tokens


class PlayedEngine:
    """One engine, or one model of an Ollama. Somebody else may use a slot beside us: a foreigner."""

    def __init__(self, count: int) -> None:
        self.held: list[Tokens] = [[] for _ in range(count)]
        self.users: dict[int, str] = {}
        """Nonce of whoever uses a slot of ours."""
        self.foreigners: dict[int, float] = {}
        """Since when somebody else uses a slot."""
        self.told: set[int] = set()
        """Slots whose foreigner was shown to the scheduler, beyond doubt."""
        self.cached: dict[str, int] = {}
        """Tokens that were found cached, by nonce."""
        self._used = [0] * count
        self._clock = 0

    def idle(self) -> list[int]:
        return [slot for slot in range(len(self.held)) if slot not in self.users and slot not in self.foreigners]

    def take(self, nonce: str, prompt: Tokens, seats: int, named: int | None) -> None:
        """A request comes. Foreigners that are in its way, and that nobody could know of, have just left."""
        if named is not None:
            assert 0 <= named < len(self.held), f"there is no slot {named}"
            assert named not in self.users, f"slot {named} is named while {self.users.get(named)} uses it"
            assert named not in self.told, f"slot {named} is named though a report showed somebody else on it"
            self.foreigners.pop(named, None)
        while len(self.idle()) < seats and self.foreigners:
            self._foreigner_leaves(min(self.foreigners))
        for seat in range(seats):
            common = {slot: common_tokens(self.held[slot], prompt) for slot in self.idle()}
            assert common, f"{nonce} would wait in the engine's own queue"
            slot = named
            if slot is None or seat:
                idle = [(each, common[each], len(self.held[each]), float(self._used[each])) for each in common]
                slot = slot_rules.choose(idle, len(prompt))
            if not seat:
                self.cached[nonce] = slot_rules.reusable(common[slot], len(prompt))
            self.held[slot] = prompt
            self.users[slot] = nonce

    def slots_of(self, nonce: str) -> list[int]:
        return [slot for slot, user in self.users.items() if user == nonce]

    def finish(self, nonce: str, answer: Tokens) -> None:
        """An answer is complete: its slot holds all of it but the last token."""
        for slot in self.slots_of(nonce):
            self.held[slot] = self.held[slot] + answer[:-1]
        self.drop(nonce)

    def drop(self, nonce: str) -> None:
        """Whatever became of a request, its slots are idle."""
        for slot in self.slots_of(nonce):
            del self.users[slot]
            self._touch(slot)
        self.cached.pop(nonce, None)

    def foreigner_comes(self, slot: int, now_s: float) -> None:
        self.held[slot] = [(-1, place) for place in range(3)]
        self.foreigners[slot] = now_s

    def foreigners_leave(self) -> None:
        for slot in list(self.foreigners):
            self._foreigner_leaves(slot)

    def states(self) -> tuple[SlotState, ...]:
        """What a look at its slots shows now."""
        idle = set(self.idle())
        return tuple(
            [
                SlotState(slot, slot not in idle, None, len(held) if slot in idle else None)
                for slot, held in enumerate(self.held)
            ]
        )

    def _foreigner_leaves(self, slot: int) -> None:
        del self.foreigners[slot]
        self.told.discard(slot)
        self._touch(slot)

    def _touch(self, slot: int) -> None:
        self._clock += 1
        self._used[slot] = self._clock


class AtEngine(msgspec.Struct):
    """A request as the engine knows it."""

    backend_id: str
    epoch: int
    seats: int
    left_s: float | None = None
    """Since when nobody reads its answer; the engine has not noticed yet."""


class Engines:
    """All engines of a fleet."""

    def __init__(self, backends: dict[str, Backend]) -> None:
        self.working: dict[str, AtEngine] = {}
        """What they work on, by nonce."""
        self._backends = backends
        self._played: dict[tuple[str, str], PlayedEngine] = {}

    def of(self, backend_id: str, model: str | None = None) -> PlayedEngine:
        """A backend's slots; those of an Ollama for one model."""
        known = self._backends[backend_id]
        key = backend_id, (model or "") if known.engine is Engine.OLLAMA else ""
        if key not in self._played:
            self._played[key] = PlayedEngine(known.slots)
        return self._played[key]

    def busy(self, backend_id: str) -> int:
        """Slots that work for us."""
        return sum(work.seats for work in self.working.values() if work.backend_id == backend_id)

    def start(self, dispatch: effects.Dispatch, wanted: Request, text: Tokens) -> None:
        """An engine gets a request."""
        known = self._backends[dispatch.backend_id]
        self.working[dispatch.nonce] = AtEngine(dispatch.backend_id, known.epoch, dispatch.seats)
        if dispatch.slot is not None:
            assert wanted.can_name_slot, "only where the engine's API can be told"
            assert known.engine is Engine.LLAMA_SERVER
        self.of(dispatch.backend_id, wanted.model).take(dispatch.nonce, text, dispatch.seats, dispatch.slot)

    def measured(
        self,
        dispatch: effects.Dispatch,
        model: str | None,
        length: int,
        answer: Message | None,
        more_cached: int,
        other_slot: int,
    ) -> Measured | None:
        """What an answer to a prompt of so many tokens tells; the last two make it wrong. None: its engine is gone."""
        work = self.working.get(dispatch.nonce)
        if answer is None or work is None:
            return None
        played = self.of(dispatch.backend_id, model)
        return Measured(
            prompt_tokens=length,
            cached_tokens=max(0, min(length - 1, played.cached[dispatch.nonce] + more_cached)),
            output_tokens=answer[1],
            prompt_ms=50.0,
            output_ms=20.0 * answer[1],
            first_byte_ms=60.0,
            slot=(played.slots_of(dispatch.nonce)[0] + other_slot) % len(played.held),
        )

    def unread(self, nonce: str, now_s: float) -> None:
        """Nobody reads an answer any more."""
        if nonce in self.working:
            self.working[nonce].left_s = now_s

    def done(self, nonce: str, answer: Tokens | None = None) -> None:
        """An engine is done with a request, unless it is gone; the answer is complete if there is one."""
        work = self.working.pop(nonce, None)
        for (backend_id, _), played in self._played.items():
            if work is not None and work.backend_id == backend_id:
                played.finish(nonce, answer or [])

    def gone(self, backend_id: str) -> None:
        """An engine's process ended."""
        for nonce in [nonce for nonce, work in self.working.items() if work.backend_id == backend_id]:
            del self.working[nonce]
        for key in [key for key in self._played if key[0] == backend_id]:
            del self._played[key]

    def notice_in_time(self, now_s: float, policy: Policy, streaming: Collection[str]) -> None:
        """No engine is slower to notice than the grace time that the policy gives it."""
        for nonce, work in list(self.working.items()):
            if work.left_s is None:
                continue
            grace_s = policy.abandoned_limit_s
            if self._backends[work.backend_id].slot_source != "slots":
                has_begun = nonce.rpartition(".")[0] in streaming
                grace_s = policy.abandoned_stream_grace_s if has_begun else policy.abandoned_grace_s
            if now_s >= work.left_s + 0.9 * grace_s:
                self.done(nonce)

    def reported(self, report: Report, scheduler: Scheduler) -> None:
        """Which foreigners the scheduler knows of now: those on slots that are idle, and were, by its own account."""
        state = scheduler._replica.get(report.backend_id)
        mirror = scheduler.outlook.mirrors(report.backend_id).get("")
        if state is None or mirror is None or state.slots is not report.slots or not report.slots:
            return
        played = self.of(report.backend_id)
        for slot, since_s in played.foreigners.items():
            seen = since_s < report.asked_at_s and any(each.id == slot and each.busy for each in report.slots)
            if seen and mirror._is_idle(slot) and mirror._used_s[slot] <= report.asked_at_s:
                played.told.add(slot)
