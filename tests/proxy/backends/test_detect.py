"""Which engine answers at an address."""

import pytest

from proxy.backends.control import Control, ProbeError
from proxy.backends.detect import detect
from proxy.endpoint import parse_endpoint
from scheduler.domain import Engine
from tests.proxy.backends.answers import LOADING, UNAUTHORIZED, Answers
from tests.real_engine import RealEngine


async def detected(engine: Answers) -> Engine:
    async with engine:
        control = Control(parse_endpoint(engine.url), 5)
        try:
            return await detect(control)
        finally:
            await control.close()


async def test_ollama() -> None:
    assert await detected(Answers.ollama()) is Engine.OLLAMA


async def test_llama_server() -> None:
    assert await detected(Answers.llama_server()) is Engine.LLAMA_SERVER


async def test_llama_server_that_loads() -> None:
    engine = Answers.llama_server()
    engine.set_all(503, LOADING)
    assert await detected(engine) is Engine.LLAMA_SERVER


async def test_llama_server_behind_something_that_takes_its_name_away() -> None:
    engine = Answers.llama_server()
    engine.headers = {"Server": "nginx"}
    assert await detected(engine) is Engine.LLAMA_SERVER


async def test_a_missing_key_is_named() -> None:
    engine = Answers.llama_server()
    engine.set_all(401, UNAUTHORIZED)
    with pytest.raises(ProbeError, match="llama-server wants an API key, or another one: set api_key"):
        await detected(engine)


@pytest.mark.parametrize(("status", "body"), [(200, {"hello": "world"}), (404, {}), (500, {})])
async def test_something_else(status: int, body: dict[str, str]) -> None:
    engine = Answers({})
    engine.set("/", status, body)
    engine.set("/props", status, body)
    with pytest.raises(ProbeError, match="neither an Ollama nor a llama-server answers there"):
        await detected(engine)


@pytest.mark.real
async def test_the_real_llama_server(real_engine: RealEngine) -> None:
    control = Control(real_engine.endpoint, 5)
    assert await detect(control) is Engine.LLAMA_SERVER
    await control.close()
    stranger = Control(parse_endpoint(real_engine.url), 5)
    with pytest.raises(ProbeError, match="wants an API key"):
        await detect(stranger)
    await stranger.close()
