"""What is loaded when: one load at a time, eviction, reloads, keep-alive. On the loop's virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from proxy.emulated.engine import SlotEngine
from proxy.emulated.ollama_heads import OllamaError
from proxy.emulated.ollama_loaded import LoadCounts
from proxy.emulated.ollama_models import Models, Use
from proxy.emulated.ollama_names import read_name
from proxy.emulated.ollama_runner import Shape
from proxy.emulated.ollama_store import StoredModel, blob_path
from proxy.emulated.options import EmulatedModel, Options
from tests.proxy.emulated.support import found, make_store

pytestmark = pytest.mark.looptime
Make = Callable[..., Models]


class Child:
    """Notes what becomes of it."""

    pid, port = 1, 2

    def __init__(self, model: StoredModel, shape: Shape, died: Callable[[], None]) -> None:
        self.shape, self.died = shape, died
        self.engine: SlotEngine | None = None
        self.ended = False

    def ready(self, engine: SlotEngine) -> None:
        self.engine = engine

    def end(self) -> None:
        self.ended = True


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[Models] = []

    def build(*more: EmulatedModel, parts: dict[str, Any] | None = None, **values: Any) -> Models:
        store = make_store(*more, *(EmulatedModel(name, size_bytes=1000) for name in "abc"))
        values = {"load_s": 2.0, "speed": 1, **values}
        made.append(Models(Options(api="ollama", **values), store, LoadCounts(), **(parts or {})))
        return made[-1]

    yield build
    for models in made:
        await models.close()


async def use(models: Models, name: str, keep_alive_s: float | None = None, **runner: Any) -> Use:
    return await models.use(found(models.store, name), runner, keep_alive_s)


def names(models: Models) -> set[str]:
    return {loaded.name.removesuffix(":latest") for loaded in models.loaded.values()}


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_model_is_loaded_once(make: Make) -> None:
    models = make()
    begin = now()
    uses = await asyncio.gather(*(use(models, "a") for _ in range(3)))
    assert now() - begin == pytest.approx(2, abs=0.01)
    assert len({id(one.loaded) for one in uses}) == 1
    assert uses[0].loaded.users == 3
    await use(models, "a")
    assert now() - begin == pytest.approx(2, abs=0.01)
    assert (models.counts.loads, models.counts.by_model) == (1, {"a:latest": {"loads": 1}})


async def test_loads_come_one_after_another(make: Make) -> None:
    models = make()
    begin = now()
    await asyncio.gather(use(models, "a"), use(models, "b"))
    assert now() - begin == pytest.approx(4, abs=0.01)
    assert names(models) == {"a", "b"}


async def test_too_many_that_wait_for_loads_are_refused_but_never_those_of_a_loaded_model(make: Make) -> None:
    models = make(max_queue=2)
    asked = [asyncio.ensure_future(use(models, "a")) for _ in range(5)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    refused = [result for result in results if isinstance(result, OllamaError)]
    assert len(refused) == 2
    assert refused[0].status == 503
    assert refused[0].message == "server busy, please try again.  maximum pending requests exceeded"
    await asyncio.gather(*(use(models, "a") for _ in range(20)))


async def test_who_waits_for_a_load_stands_behind_those_of_other_models(make: Make) -> None:
    models = make(max_loaded=1)
    first = await use(models, "a")
    blocked = asyncio.ensure_future(use(models, "b"))  # waits for a to be idle
    behind = asyncio.ensure_future(use(models, "c"))
    await asyncio.sleep(5)
    same = await use(models, "a")  # passes by
    assert not blocked.done()
    assert not behind.done()
    for one in (first, same):
        one.release()
    (await blocked).release()
    await behind
    assert (models.counts.loads, models.counts.evictions, models.counts.expirations) == (3, 2, 0)


async def test_an_idle_model_gives_way_else_the_first_to_be_idle(make: Make) -> None:
    models = make(max_loaded=2)
    first, second = await use(models, "a", keep_alive_s=10), await use(models, "b", keep_alive_s=20)
    second.release()
    await use(models, "c", keep_alive_s=30)
    assert names(models) == {"a", "c"}
    waiting = asyncio.ensure_future(use(models, "b"))
    await asyncio.sleep(10)
    assert not waiting.done()
    first.release()
    await waiting
    assert names(models) == {"b", "c"}
    assert models.counts.evictions == 2


async def test_memory_that_is_short_evicts_too(make: Make) -> None:
    model = EmulatedModel("big", size_bytes=10**9)
    room = 10**9 + 4 * 4096 * 131_072  # of the big one in four slots
    models = make(model, memory_bytes=int(room * 1.75))
    (await use(models, "big")).release()
    (await use(models, "a", num_ctx=64)).release()
    assert names(models) == {"big", "a"}
    (await use(models, "b")).release()  # 2.1 GB of KV are more than 80 % of what is left
    assert "b" in names(models)
    assert "big" not in names(models)
    assert models.counts.evictions in {1, 2}  # by their digests, whichever goes first


async def test_other_options_reload_once_the_model_is_idle(make: Make) -> None:
    models = make()
    first = await use(models, "a")
    assert (await use(models, "a", num_ctx=4096)).loaded is first.loaded  # the same number is the same
    waiting = asyncio.ensure_future(use(models, "a", num_ctx=2048))
    await asyncio.sleep(10)
    assert not waiting.done()
    joined = await use(models, "a")  # the old shape goes on serving meanwhile
    for _ in range(2):
        models.let_go(first.loaded)
    joined.release()
    second = await waiting
    assert (second.loaded.context, second.loaded.engine.context) == (2048, 2048)
    assert (models.counts.loads, models.counts.reloads, models.counts.expirations) == (2, 1, 0)


async def test_a_request_with_a_keep_alive_of_its_own_holds_up_a_reload(make: Make) -> None:
    models = make()
    first = await use(models, "a")
    waiting = asyncio.ensure_future(use(models, "a", num_ctx=2048))
    await asyncio.sleep(1)
    joined = await use(models, "a", keep_alive_s=60)
    first.release()
    joined.release()
    await asyncio.sleep(59)
    assert not waiting.done()
    await asyncio.sleep(4)
    assert (await waiting).loaded.context == 2048


async def test_names_that_share_weights_share_the_runner(make: Make) -> None:
    models = make(EmulatedModel("small", weights="a", size_bytes=1000, settings={"num_ctx": 1024}))
    name = read_name("copy")
    assert name is not None
    models.store.copy(found(models.store, "small"), name)
    first = await use(models, "small")
    begin = now()
    assert (await use(models, "copy")).loaded is first.loaded
    assert (await use(models, "a", num_ctx=1024)).loaded is first.loaded
    assert now() == begin
    assert [loaded.name for loaded in models.loaded.values()] == ["small:latest"]  # who made it be loaded


async def test_an_idle_model_is_unloaded_after_its_time(make: Make) -> None:
    models = make(keep_alive_s=300)
    held = await use(models, "a")
    await asyncio.sleep(1000)
    assert models.loaded
    held.release()
    held.release()  # counts once
    await asyncio.sleep(299)
    assert models.loaded
    await asyncio.sleep(2)
    assert not models.loaded
    assert models.counts.expirations == 1


async def test_the_time_can_be_given_sticks_and_may_be_for_ever(make: Make) -> None:
    models = make()
    for keep, later in ((10.0, 11), (-1.0, 10**6)):
        (await use(models, "a", keep_alive_s=keep)).release()
        held = await use(models, "a")
        held.release()
        assert held.loaded.keep_alive_s == keep
        await asyncio.sleep(later)
        assert bool(models.loaded) == (keep < 0)
    assert held.loaded.expires_ns > 9_000_000_000 * 10**9


async def test_a_model_told_to_go_goes_when_it_is_idle(make: Make) -> None:
    models = make()
    held = await use(models, "a", keep_alive_s=0)  # loaded for this one request
    models.expire(held.loaded.model)
    assert models.loaded
    held.release()
    assert not models.loaded
    models.expire(held.loaded.model)


async def test_who_leaves_gives_up_the_load_and_the_next_loads_from_the_start(make: Make) -> None:
    models = make()
    first = asyncio.ensure_future(use(models, "a"))
    second = asyncio.ensure_future(use(models, "a"))
    await asyncio.sleep(1.5)
    first.cancel()
    begin = now()
    await second
    assert now() - begin == pytest.approx(2, abs=0.01)
    assert (models.counts.aborted, models.counts.loads) == (1, 1)


async def test_what_is_loading_is_not_there_and_ps_waits(make: Make) -> None:
    models = make(ps_stall_s=0.5)
    loading = asyncio.ensure_future(use(models, "a"))
    await asyncio.sleep(0.1)
    begin = now()
    await models.settled()
    assert now() - begin == pytest.approx(0.4, abs=0.01)
    assert not models.loaded
    held = await loading
    models.expire(held.loaded.model)
    held.release()
    begin = now()
    again = asyncio.ensure_future(use(models, "b"))
    await models.settled()
    assert now() - begin == pytest.approx(0.5, abs=0.01)
    await again
    assert now() - begin == pytest.approx(2.5, abs=0.01)  # memory has to be free again first


async def test_a_load_can_fail(make: Make) -> None:
    problems = ["out of memory"]
    models = make(parts={"fails": lambda: problems.pop() if problems else None})
    with pytest.raises(OllamaError, match="out of memory") as caught:
        await use(models, "a")
    assert caught.value.status == 500
    await use(models, "a")
    models.store.files.remove(blob_path(found(models.store, "b").blob))
    with pytest.raises(OllamaError, match="unable to load model: /emulated/models/blobs/sha256-"):
        await use(models, "b")
    assert (models.counts.failed, models.counts.loads) == (2, 1)


async def test_an_embedding_model_has_one_slot(make: Make) -> None:
    models = make(EmulatedModel("e", capabilities=("embedding",)), slots=4)
    assert len((await use(models, "e")).loaded.engine.slots) == 1


async def test_a_runner_has_a_child_which_goes_with_it(make: Make) -> None:
    children: list[Child] = []

    def spawn(model: StoredModel, shape: Shape, died: Callable[[], None]) -> Child:
        children.append(Child(model, shape, died))
        return children[-1]

    models = make(parts={"spawn": spawn})
    held = await use(models, "a")
    assert children[0].engine is held.loaded.engine
    held.release()
    aborted = asyncio.ensure_future(use(models, "a", num_ctx=2048))
    await asyncio.sleep(1)
    assert children[0].ended
    aborted.cancel()
    await asyncio.sleep(0)
    assert children[1].ended
    dying = asyncio.ensure_future(use(models, "a"))
    await asyncio.sleep(1)
    children[2].died()
    with pytest.raises(OllamaError, match="signal: killed"):
        await dying
    assert (await use(models, "a")).loaded.child is children[3]
    children[3].died()
    assert (models.counts.child_deaths, models.loaded[found(models.store, "a").blob].dead) == (1, True)


async def test_a_dead_child_is_noticed_by_the_next_request(make: Make) -> None:
    models = make()
    held = await use(models, "a")
    models.child_died(held.loaded)
    models.child_died(held.loaded)
    assert names(models) == {"a"}
    waiting = asyncio.ensure_future(use(models, "a"))
    held.release()
    again = await waiting
    assert again.loaded is not held.loaded
    assert (models.counts.child_deaths, models.counts.reloads, models.counts.loads) == (1, 0, 2)
