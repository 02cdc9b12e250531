"""Owns asking the llama-servers that an Ollama runs for its loaded models: what is busy in them. Never decides.

Each answer to /slots or /metrics restarts the one-second wait on which a llama-server notices that a client left while
its prompt is computed (captures/ollama/120, item 3), so none is asked again within `spacing_s`. A sleeping one is left
asleep, see `probes.llama_server`. One that does not answer is busy, not dead.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from proxy.backends.control import Control, ProbeError
from proxy.backends.ollama_children import Child, Finder, Found
from proxy.backends.probes import CHILD_SPACING_S, Look
from proxy.backends.probes.llama_server import LlamaServerProbe
from proxy.endpoint import Endpoint
from scheduler.domain import Residency, SlotState
from scheduler.names import short
from scheduler.runner import Runner

FIND_AGAIN_S = 30.0
"""The process table is read again this often, whatever seems to have changed."""
_UNSEEN_LOOKS = 3
"""Looks in a row that miss the llama-server of a loaded model, after which it is thought to have none."""
_SLACK_S = 0.001
NOT_LOOKED_FOR = "its processes were not looked for"


class Loaded(msgspec.Struct, frozen=True):
    """A loaded model as /api/ps lists it, with what is known of it from elsewhere."""

    residency: Residency
    may_shift: bool = True
    """Whether its llama-server would be told to shift a full context, unless a request forbade it."""
    is_listed: bool = True
    """False: what was loaded is not on disk any more, as far as is known."""


class Occupancy(msgspec.Struct, frozen=True):
    """What one round of questions told."""

    residencies: tuple[Residency, ...]
    busy_slots: int | None = None
    """None: not told, by one of them at least."""
    deferred: int | None = None
    working: bool = False
    progress: str = ""


class _Answered(msgspec.Struct, frozen=True):
    """What one llama-server answered."""

    look: Look | None = None
    """None: nothing."""
    serves: bool = True
    """It has its model loaded, as far as can be told: a slow one does."""


class _Asked:
    """One llama-server, and when it was asked last."""

    def __init__(self, child: Child, probe: LlamaServerProbe) -> None:
        self.child = child
        self.probe = probe
        self.asked_s = float("-inf")
        self.gone = False
        """Nobody answered, or somebody else: the process table knows more."""


class OllamaSlots:
    """Follows one Ollama's llama-servers."""

    def __init__(
        self,
        finder: Finder | None,
        *,
        timeout_s: float = 5.0,
        spacing_s: float = CHILD_SPACING_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`finder` None: they cannot be looked for, since it is another box's."""
        self._finder = finder
        self._timeout_s = timeout_s
        self.spacing_s = spacing_s
        self._clock = clock
        self._asked: dict[tuple[int, int], _Asked] = {}
        self._found_s = float("-inf")
        self._key: object = None
        self._unseen = 0
        self._unseen_why = ""
        self._told: tuple[object, set[str]] = (None, set())
        """An Ollama, and the weights of which a llama-server of it has told what it does."""
        self.found = Found(why=NOT_LOOKED_FOR)

    @property
    def why(self) -> str:
        """Why what they do is not known; empty: it is."""
        return self.found.why or (self._unseen_why if self._unseen >= _UNSEEN_LOOKS else "")

    async def find(self, key: object = None) -> Found:
        """Read the process table, if anything can have changed there since it was read last.

        `key` stands for what is loaded: another one means that other llama-servers run. None: nothing new is known.
        """
        if self._finder is None:
            return self.found
        is_due = self._unseen or self._clock() - self._found_s >= FIND_AGAIN_S
        changed = key not in {None, self._key} or any(each.gone for each in self._asked.values())
        if is_due or changed or not await self._holds(self._finder):
            self.found = await asyncio.to_thread(self._finder.find)
            self._found_s = self._clock()
            self._key = self._key if key is None else key
            await self._follow(self.found.children)
        return self.found

    async def _holds(self, finder: Finder) -> bool:
        return self.found.ollama is None or await asyncio.to_thread(finder.holds, self.found)

    async def read(self, loaded: Sequence[Loaded]) -> Occupancy:
        """Ask all of them, and tell which loaded model each runs."""
        residencies = tuple(each.residency for each in loaded)
        await self.find(tuple((each.model, each.context_tokens, each.size_bytes) for each in residencies))
        if self.found.why or self.found.ollama is None:
            self._unseen = 0
            return Occupancy(residencies)
        asked = list(self._asked.values())
        answers = await asyncio.gather(*(self._ask(each) for each in asked))
        told = {each.child: answer for each, answer in zip(asked, answers, strict=True)}
        ollama = (self.found.ollama.pid, self.found.ollama.started)
        known = self._told[1] if self._told[0] == ollama else set()
        self._told = (ollama, known)
        known |= {child.weights for child, answer in told.items() if answer.look is not None}
        residencies, unseen = _matched(loaded, told, known)
        self._unseen = self._unseen + 1 if unseen else 0
        if unseen:
            self._unseen_why = _why_unseen(loaded, unseen[0], self.found.ollama.pid)
        looks = [answer.look for answer in answers if answer.look is not None]
        silent = [answer for answer in answers if answer.look is None and answer.serves]
        complete = not (unseen or silent)
        deferred = [look.deferred for look in looks if look.deferred is not None]
        return Occupancy(
            residencies=residencies,
            busy_slots=sum(look.busy_slots or 0 for look in looks) if complete else None,
            deferred=sum(deferred) if deferred else None,
            working=bool(silent) or any(look.working for look in looks),
            progress="/".join(look.progress for look in looks) if complete else "",
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._follow(())

    async def _follow(self, children: Sequence[Child]) -> None:
        present = {(child.pid, child.started): child for child in children}
        for key in [key for key in self._asked if key not in present]:
            await self._asked.pop(key).probe.close()
        for key, child in present.items():
            if key not in self._asked:
                self._asked[key] = _Asked(child, self._open(child))
            self._asked[key].gone = False

    def _open(self, child: Child) -> LlamaServerProbe:
        # each question on a connection of its own: a kept one would hold one of the few threads that Ollama needs there
        headers = (("Connection", "close"),)
        endpoint = Endpoint(f"127.0.0.1:{child.port}", child.port, "127.0.0.1", headers=headers)
        return LlamaServerProbe(Control(endpoint, self._timeout_s), serves=child.model)

    async def _ask(self, asked: _Asked) -> _Answered:
        if self._clock() - asked.asked_s < self.spacing_s - _SLACK_S:
            return _Answered()
        try:
            look = await asked.probe.look()
        except ProbeError as error:
            asked.gone = error.refused or error.another
            return _Answered(serves=not (error.loading or asked.gone))
        finally:
            asked.asked_s = self._clock()
        return _Answered(look, serves=look.busy_slots is not None)


def _matched(
    loaded: Sequence[Loaded], told: dict[Child, _Answered], known: set[str]
) -> tuple[tuple[Residency, ...], list[str]]:
    """Each loaded model with what its llama-server told, and the names of those that have none.

    Not those whose llama-server is gone, which is so for weights that are `known`: it died, and nothing runs on it.
    Ollama lists such a model until somebody asks for it.

    While one is replaced there may be two with the same weights: the one with the context that Ollama tells, and of
    those the latest, is meant.
    """
    residencies, unseen = [], []
    for each in loaded:
        residency = each.residency
        candidates = [child for child in told if residency.weights and child.weights == residency.weights]
        candidates.sort(key=lambda child: (child.context_tokens == residency.context_tokens, child.started))
        if not candidates or not told[candidates[-1]].serves:
            if candidates or residency.weights not in known:
                unseen.append(residency.model)
            residencies.append(residency)
            continue
        child = candidates[-1]
        look = told[child].look
        residencies.append(
            msgspec.structs.replace(
                residency,
                context_tokens=residency.context_tokens or child.context_tokens,
                runner=runner_of(child, may_shift=each.may_shift),
                slots=(look.slots if look else ()) or _states(child, busy=look is None),
            )
        )
    return tuple(residencies), unseen


def _why_unseen(loaded: Sequence[Loaded], name: str, pid: int) -> str:
    if any(each.residency.model == name and not each.residency.weights and not each.is_listed for each in loaded):
        gone = "was deleted or replaced while it was loaded"
        return f"{short(name)} {gone}: which llama-server runs it is not known, until its time is over"
    return (
        f"{short(name)} runs in no llama-server of Ollama, PID {pid}, that can be asked: it is older than 0.30, or the "
        "model is of another format"
    )


def _states(child: Child, *, busy: bool) -> tuple[SlotState, ...]:
    """The slots of one that tells none now: it is too busy for that, or sleeps."""
    return tuple(SlotState(number, busy, child.context_tokens) for number in range(child.slots))


def runner_of(child: Child, *, may_shift: bool = True) -> Runner:
    """The options that a request must have said for a llama-server to be started so.

    What Ollama chooses itself where a request does not say is not told: it would look like a wish of somebody's.
    """
    automatic = 2048 if (total := (child.context_tokens or 0) * child.slots) > 32768 else 1024 if total > 4096 else 512
    batch = child.batch_tokens if child.batch_tokens and child.batch_tokens > automatic else None  # it may lower it
    return Runner(
        num_batch=batch,
        num_gpu=child.gpu_layers,
        num_thread=child.threads,
        shift=False if may_shift and not child.context_shift else None,
    )
