"""What requests want of how models are loaded, and what is said of that, beside a real dispatcher's scheduler."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.config_residency import ResidencyConfig
from proxy.dialects import Call, ClientError
from proxy.dispatcher import Dispatcher
from proxy.journal import Journal
from proxy.loads import Loads
from proxy.pins import Pins
from proxy.residency import Residencies, kept_loaded, rules_of
from proxy.store import Store
from proxy.ticketed import Assignment
from scheduler import events
from scheduler.core import Scheduler
from scheduler.domain import Backend, Decision, Engine, Operation, Request
from scheduler.effects import Load
from scheduler.policy import Policy
from scheduler.runner import Runner, RunnerRules
from tests.proxy.dialects.support import call_of
from tests.scheduler.world import request

MODEL = "m:latest"
OLLAMA = Backend(
    id="gpu0",
    engine=Engine.OLLAMA,
    slots=2,
    running_limit=2,
    models=frozenset({MODEL}),
    contexts={MODEL: 4096},
    most_context={MODEL: 32768},
)


class Fleet:
    """Engines that nobody reaches."""

    def look(self, _backend_id: str, _at_s: float) -> None:
        """Nobody looks."""

    def endpoint(self, backend_id: str) -> Any:
        raise LookupError(backend_id)

    def store_id(self, backend_id: str) -> str:
        return backend_id

    def local_id(self, store_id: str) -> str | None:
        return store_id

    def loaded_by_default(self, _backend_id: str, _model: str) -> None:
        """Nobody learns."""


class World:
    """One proxy's residencies, without engines."""

    def __init__(self, tmp_path: Path) -> None:
        self.store = Store(f"unix://{tmp_path}/none.sock", fleet="f", proxy_id="p")
        self.dispatcher = Dispatcher(Scheduler(Policy()), self.store, Journal())
        fleet = Fleet()
        self.dispatcher.fleet = fleet
        self.loads = Loads(fleet, self.store.locks, self.dispatcher.feed)
        self.dispatcher.loads = self.loads
        self.pins = Pins(self.store.pins, self.dispatcher, self.dispatcher.feed)
        self.residencies = Residencies(ResidencyConfig(), self.dispatcher, self.loads, self.pins)
        self.dispatcher.feed(events.BackendChanged(OLLAMA))

    def configure(self, **values: Any) -> None:
        self.residencies.configure(ResidencyConfig.model_validate(values))

    def wish(self, call: Call, **values: Any) -> Request:
        return self.residencies.wish(call, asked(**({"prompt_bytes": 100} | values)))

    async def close(self) -> None:
        await self.loads.close()
        await self.dispatcher.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    await made.close()


def asked(prompt_bytes: int, **values: Any) -> Request:
    """A request with a prompt of that size."""
    return msgspec.structs.replace(request("r", model=MODEL, **values), prompt_bytes=prompt_bytes)


def chat(**fields: Any) -> Call:
    return call_of("/api/chat", {"model": "m", "messages": [{"role": "user", "content": "x"}]} | fields)


def assigned(runner: Runner | None = None) -> Assignment:
    return Assignment("gpu0", Decision("r"), 1, 1, runner=runner)


async def test_wishes_are_normalised_by_the_operators_rules(world: World) -> None:
    said = chat(options={"num_ctx": 3000, "num_gpu": 5}, shift=False, keep_alive="5m")
    wanted = world.wish(said)
    assert (wanted.runner, wanted.keep_alive_s) == (Runner(num_ctx=4096, shift=False), 300.0)
    assert world.wish(chat()).runner == Runner()

    world.configure(context_buckets=[1000, 3500], options="keep", models={"M": {"num_ctx": 16384}})
    assert world.residencies.rules == RunnerRules((1000, 3500), True, {MODEL: 16384}, False)
    assert world.wish(said).runner == Runner(num_ctx=16384, num_gpu=5, shift=False, exact=True)


async def test_other_apis_have_no_wish(world: World) -> None:
    call = call_of("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "x"}]})
    wanted = world.wish(call)
    assert (wanted.runner, wanted.keep_alive_s) == (None, None)


async def test_a_context_grows_with_what_shall_go_into_it(world: World) -> None:
    long = {"prompt_bytes": 40_000, "max_output_tokens": 100}
    assert world.wish(chat(), **long).runner == Runner()
    world.configure(grow_context=True)
    assert world.wish(chat(), prompt_bytes=100).runner == Runner()
    grown = world.wish(chat(), **long).runner
    assert grown is not None
    assert grown.num_ctx in (8192, 16384)
    most = world.wish(chat(), prompt_bytes=10_000_000).runner
    assert most == Runner(num_ctx=32768)


async def test_who_may_not_unload_is_refused_and_keeps_it_loaded(world: World) -> None:
    unload, now = chat(messages=[], keep_alive=0), chat(keep_alive="0s")
    with pytest.raises(ClientError, match="`slotgate unload m`") as caught:
        world.residencies.guarded(unload, is_admin=False)
    assert caught.value.status == 403
    kept = world.residencies.guarded(now, is_admin=False)
    assert (kept.keep_alive_s, "keep_alive" in kept.fields, b"keep_alive" in kept.body) == (None, False, False)
    assert kept.operation is Operation.CHAT

    assert world.residencies.guarded(unload, is_admin=True) is unload
    assert world.residencies.guarded(now, is_admin=True) is now
    world.configure(clients_may_unload=True)
    assert world.residencies.guarded(unload, is_admin=False) is unload
    assert world.residencies.guarded(now, is_admin=False) is now


@pytest.mark.parametrize("moment", [1e-10, 0.001, 0.9, "1ns", "0.0000000001s", "1ms", "999ms"])
@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": "hi"}]])
async def test_a_moment_is_as_good_as_an_unload(world: World, moment: object, messages: list[object]) -> None:
    call = chat(messages=messages, keep_alive=moment)
    kept = world.residencies.guarded(call, is_admin=False)
    assert (kept.keep_alive_s, b"keep_alive" in kept.body, kept.operation) == (None, False, call.operation)
    assert world.residencies.guarded(call, is_admin=True) is call
    second = chat(messages=messages, keep_alive=1)
    assert world.residencies.guarded(second, is_admin=False) is second


async def test_a_pinned_model_is_nobodys_to_unload(world: World) -> None:
    world.configure(models={"m": {"pin": True}}, clients_may_unload=True)
    with pytest.raises(ClientError, match="m is pinned") as caught:
        world.residencies.guarded(chat(messages=[], keep_alive=0), is_admin=True)
    told = 'm is pinned: taking pin = true out of residency.models."m" lets it be unloaded'
    assert (caught.value.status, caught.value.message) == (403, told)
    assert world.residencies.residing(chat(), OLLAMA, None).stays
    assert world.residencies.residing(chat(), OLLAMA, Runner(num_ctx=8192)).stays
    world.configure(models={"m": {"pin": True, "num_ctx": 8192}})
    assert not world.residencies.residing(chat(), OLLAMA, Runner(num_ctx=4096)).stays  # another copy serves the pin
    assert not world.residencies.residing(chat(model="n"), OLLAMA, None).stays


async def test_what_an_attempt_is_told(world: World) -> None:
    residing = world.residencies.residing(chat(), OLLAMA, Runner(num_ctx=8192))
    assert (residing.runner, residing.default_context, residing.most_context, residing.stays) == (
        Runner(num_ctx=8192),
        4096,
        32768,
        False,
    )


async def test_what_may_not_fit_is_noted_and_counted(world: World) -> None:
    note = world.residencies.note_context
    long = asked(40_000, max_output_tokens=10)
    told = note(long, OLLAMA, assigned(Runner(num_ctx=4096)))
    assert told is not None
    assert told.context_tokens == 4096
    assert told.prompt_tokens + 10 > 4096
    assert note(long, OLLAMA, assigned()) == told
    assert note(long, OLLAMA, assigned(Runner(num_ctx=32768))) is None
    assert note(asked(100), OLLAMA, assigned()) is None
    answer = asked(100, max_output_tokens=5000)
    assert note(answer, OLLAMA, assigned()) is not None
    assert world.residencies.exceeded == {"gpu0": 3}


async def test_nothing_is_noted_where_nothing_is_left_out(world: World) -> None:
    note = world.residencies.note_context
    long = asked(10_000_000)
    assert note(asked(10_000_000, operation=Operation.EMBED), OLLAMA, assigned()) is None
    assert note(asked(10_000_000, cloud=True), OLLAMA, assigned()) is None
    other = Backend(id="gpu1", engine=Engine.LLAMA_SERVER, slots=1, running_limit=1)
    assert note(long, other, assigned()) is None
    unknown = Backend(id="gpu0", engine=Engine.OLLAMA, slots=1, running_limit=1, models=frozenset({MODEL}))
    assert note(long, unknown, assigned()) is None
    assert not world.residencies.exceeded


def test_rules() -> None:
    assert rules_of(ResidencyConfig()) == RunnerRules()


def test_kept_loaded_leaves_everything_else() -> None:
    call = call_of("/api/generate", b'{"model":"m","prompt": "x" ,"KEEP_ALIVE":0}')
    assert kept_loaded(call).body == b'{"model":"m","prompt":"x"}'


async def test_the_dispatcher_has_loads_performed(world: World) -> None:
    world.dispatcher._perform(Load("gpu0", MODEL, "n", Runner()))
    assert [record.nonce for record in world.loads.records] == ["n"]
