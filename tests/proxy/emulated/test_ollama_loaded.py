import time

import pytest

from proxy.emulated.ollama_loaded import LoadCounts, Loaded, lifetime_s, needed_bytes
from proxy.emulated.ollama_runner import Shape
from proxy.emulated.options import EmulatedModel
from tests.proxy.emulated.support import make_engine, stored


def test_events_are_counted_together_and_by_model() -> None:
    counts = LoadCounts()
    for name in ("a", "b", "a"):
        counts.add("loads", name)
    counts.add("reloads", "a")
    assert (counts.loads, counts.reloads) == (3, 1)
    assert counts.by_model == {"a": {"loads": 2, "reloads": 1}, "b": {"loads": 1}}
    assert LoadCounts().by_model == {}


async def test_a_runner_tells_of_itself() -> None:
    engine = make_engine(slots=2)
    loaded = Loaded(stored(EmulatedModel("a", size_bytes=10)), Shape(100, 2, 512), engine)
    assert loaded.size_bytes == needed_bytes(loaded.model, loaded.shape) == 10 + 2 * 100 * 131_072
    view = loaded.view()
    assert (view["name"], view["context"], view["slots"], view["pid"]) == ("a:latest", 100, 2, None)
    loaded.keep_alive_s = 60
    assert loaded.told_expiry_ns == pytest.approx(time.time_ns() + 60 * 10**9, abs=10**10)
    loaded.expires_ns = 5
    assert loaded.told_expiry_ns == 5
    await engine.close()


def test_a_negative_keep_alive_is_for_ever() -> None:
    assert lifetime_s(-1) == lifetime_s(float("inf")) > 290 * 365 * 86400
    assert lifetime_s(0) == 0
