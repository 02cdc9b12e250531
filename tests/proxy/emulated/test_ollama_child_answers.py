import json

import pytest

from proxy.emulated.ollama_child_answers import ChildAnswers
from proxy.emulated.options import EmulatedModel
from tests.proxy.emulated.support import make_engine, make_job
from tests.wait import until


def answers(**values: bool) -> ChildAnswers:
    return ChildAnswers(EmulatedModel("a"), "/m/blobs/sha256-1", **{"metrics_on": False, **values})


def split(raw: bytes) -> tuple[int, str, str]:
    head, _, body = raw.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), head, body


@pytest.mark.parametrize("path", ["/health", "/slots", "/props", "/metrics", "/nothing"])
def test_while_it_loads_it_says_so(path: str) -> None:
    status, head, body = split(answers().answer("GET", path, keep=True))
    assert (status, json.loads(body)["error"]["message"]) == (503, "Loading model")
    assert "Connection: close" in head


async def test_it_tells_its_slots_and_that_none_is_free() -> None:
    child, engine = answers(), make_engine(slots=1, speed=1)
    child.engine = engine
    status, head, body = split(child.answer("GET", "/slots?fail_on_no_slot=1", keep=True))
    assert (status, [slot["is_processing"] for slot in json.loads(body)]) == (200, [False])
    assert f"Content-Length: {len(body)}\r\nKeep-Alive" in head
    jobs = [make_job("hello", 400)[0] for _ in range(2)]
    for job in jobs:
        engine.submit(job)
    await until(lambda: engine.running, "one runs")
    refused = split(child.answer("GET", "/slots?fail_on_no_slot=1", keep=True))
    assert (refused[0], json.loads(refused[2])["error"]["message"]) == (503, "no slot available")
    assert split(child.answer("GET", "/slots", keep=True))[0] == 200
    await engine.close()


async def test_what_waits_in_ollama_is_not_told() -> None:
    child, engine = answers(metrics_on=True), make_engine(slots=1, speed=1)
    child.engine = engine
    for _ in range(3):
        engine.submit(make_job("hello", 400)[0])
    await until(lambda: engine.deferred, "two wait")
    status, head, body = split(child.answer("GET", "/metrics", keep=True))
    assert (status, "text/plain" in head) == (200, True)
    assert "llamacpp:requests_processing 1\n" in body
    assert "llamacpp:requests_deferred 0\n" in body
    await engine.close()


async def test_who_asks_delays_the_noticing_of_clients_that_left() -> None:
    child, engine = answers(), make_engine(slots=1, speed=1)
    child.engine = engine
    before = engine._woken_s
    child.answer("GET", "/health", keep=True)
    assert engine._woken_s == before
    child.answer("GET", "/slots", keep=True)
    assert engine._woken_s > before
    await engine.close()


async def test_other_routes_are_not_there() -> None:
    child, engine = answers(), make_engine()
    child.engine = engine
    for method, target, status in (
        ("GET", "/health", 200),
        ("GET", "/props", 200),
        ("GET", "/metrics", 501),
        ("POST", "/slots", 404),
        ("GET", "/v1/models", 404),
    ):
        assert split(child.answer(method, target, keep=True))[0] == status
    await engine.close()
