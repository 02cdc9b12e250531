"""What is loaded when: one load at a time, eviction, reloads, keep-alive. On the loop's virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from proxy.emulated.ollama_heads import OllamaError
from proxy.emulated.ollama_models import Models, Use
from proxy.emulated.options import EmulatedModel, Options

pytestmark = pytest.mark.looptime
Make = Callable[..., Models]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[Models] = []

    def build(**values: Any) -> Models:
        names = tuple(EmulatedModel(name) for name in "abc")
        made.append(Models(Options(api="ollama", models=names, load_s=2.0, speed=1, **values)))
        return made[-1]

    yield build
    for models in made:
        await models.close()


async def use(models: Models, name: str, keep_alive_s: float | None = None, **runner: Any) -> Use:
    model = models.find(name)
    assert model is not None
    return await models.use(model, runner, keep_alive_s)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_names_have_a_tag_and_no_case(make: Make) -> None:
    models = make()
    assert models.find("A") == models.find("a:latest") == models.present["a:latest"]
    assert models.find("a:other") is None
    assert models.find("d") is None


async def test_a_model_is_loaded_once(make: Make) -> None:
    models = make()
    begin = now()
    uses = await asyncio.gather(*(use(models, "a") for _ in range(3)))
    assert now() - begin == pytest.approx(2, abs=0.01)
    assert len({id(one.loaded) for one in uses}) == 1
    assert uses[0].loaded.users == 3
    await use(models, "a")
    assert now() - begin == pytest.approx(2, abs=0.01)


async def test_loads_come_one_after_another(make: Make) -> None:
    models = make()
    begin = now()
    await asyncio.gather(use(models, "a"), use(models, "b"))
    assert now() - begin == pytest.approx(4, abs=0.01)
    assert set(models.loaded) == {"a:latest", "b:latest"}


async def test_too_many_that_wait_for_loads_are_refused_but_never_those_of_a_loaded_model(make: Make) -> None:
    models = make(max_queue=2)
    asked = [asyncio.ensure_future(use(models, "a")) for _ in range(5)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    refused = [result for result in results if isinstance(result, OllamaError)]
    assert len(refused) == 2
    assert (refused[0].status, "server busy, please try again.  maximum" in refused[0].message) == (503, True)
    await asyncio.gather(*(use(models, "a") for _ in range(20)))


async def test_an_idle_model_gives_way_else_the_first_to_be_idle(make: Make) -> None:
    models = make(max_loaded=2)
    first, second = await use(models, "a"), await use(models, "b")
    models.release(second.loaded)
    await use(models, "c")
    assert set(models.loaded) == {"a:latest", "c:latest"}
    waiting = asyncio.ensure_future(use(models, "b", keep_alive_s=-1))
    await asyncio.sleep(10)
    assert not waiting.done()
    models.release(first.loaded)
    await waiting
    assert set(models.loaded) == {"b:latest", "c:latest"}


async def test_other_options_reload_once_the_model_is_idle(make: Make) -> None:
    models = make()
    first = await use(models, "a")
    assert (await use(models, "a", num_ctx=4096)).loaded is first.loaded  # the same number is the same
    waiting = asyncio.ensure_future(use(models, "a", num_ctx=2048))
    await asyncio.sleep(10)
    assert not waiting.done()
    models.release(first.loaded)
    models.release(first.loaded)
    second = await waiting
    assert second.loaded.context == 2048
    assert second.loaded.engine.context == 2048


async def test_an_idle_model_is_unloaded_after_its_time(make: Make) -> None:
    models = make(keep_alive_s=300)
    held = await use(models, "a")
    await asyncio.sleep(1000)
    assert models.loaded
    models.release(held.loaded)
    await asyncio.sleep(299)
    assert models.loaded
    await asyncio.sleep(2)
    assert not models.loaded


async def test_the_time_can_be_given_sticks_and_may_be_for_ever(make: Make) -> None:
    models = make()
    for keep, later in ((10.0, 11), (-1.0, 10**6)):
        held = await use(models, "a", keep_alive_s=keep)
        models.release(held.loaded)
        held = await use(models, "a")
        models.release(held.loaded)
        assert held.loaded.keep_alive_s == keep
        await asyncio.sleep(later)
        assert bool(models.loaded) == (keep < 0)
    assert held.loaded.expires_ns > 9_000_000_000 * 10**9


async def test_a_model_told_to_go_goes_when_it_is_idle(make: Make) -> None:
    models = make()
    held = await use(models, "a")
    models.expire(held.loaded.model)
    assert models.loaded
    models.release(held.loaded)
    assert not models.loaded
    models.expire(held.loaded.model)


async def test_models_are_copied_and_removed(make: Make) -> None:
    models = make()
    models.copy(models.present["a:latest"], "a2")
    assert models.find("a2") is not None
    assert models.digest(models.present["a:latest"]) != models.digest(models.present["a2:latest"])
    models.remove(models.present["a2:latest"])
    assert models.find("a2") is None


async def test_an_embedding_model_has_one_slot(make: Make) -> None:
    options = Options(api="ollama", models=(EmulatedModel("e", capabilities=("embedding",)),), slots=4)
    models = Models(options)
    assert len((await use(models, "e")).loaded.engine.slots) == 1
    await models.close()


async def test_a_dead_child_is_loaded_anew(make: Make) -> None:
    models = make()
    held = await use(models, "a")
    models.child_died(held.loaded)
    again = await use(models, "a")
    assert again.loaded is not held.loaded
    models.release(held.loaded)
    assert models.loaded["a:latest"] is again.loaded
