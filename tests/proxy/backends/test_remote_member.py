"""One backend of another proxy: the events that its owner's news and records become."""

from pathlib import Path

import msgspec
import pytest

from proxy.backends.remote_member import LOOK_WISH_S, MARGIN_S, UNSURE_S
from proxy.endpoint import Gate
from scheduler.domain import Engine
from scheduler.events import BackendChanged, BackendLeft, BackendReported, BackendSignalled, GpuReported
from scheduler.health import Signal
from scheduler.memory import GpuMemory
from scheduler.news import BackendMoved, ListWanted, LookWanted
from tests.proxy.backends.remote_scene import GATE, HERE, LOOPBACK, NETWORK, THERE, Announcing, Hearing, engine_facts

KEY = (("Authorization", "Bearer k"),)
GUARDED = msgspec.structs.replace(LOOPBACK, headers=KEY)


def test_a_backend_as_announced_under_its_name_here() -> None:
    there, here = Announcing(), Hearing()
    backend = there.add(models=frozenset({"m"}), managed=True)
    there.ready()
    here.refresh(there)
    assert here.took() == [
        BackendChanged(backend),
        BackendSignalled("gpu", Signal.STARTED),
        BackendSignalled("gpu", Signal.ANSWERED),
    ]
    assert here.fleet.endpoint("gpu") == LOOPBACK
    assert here.fleet.facts("gpu") == engine_facts()
    assert here.joined == ["gpu"]


def test_an_engine_is_ready_only_when_what_it_is_is_known() -> None:
    there, here = Announcing(), Hearing()
    there.add()
    here.refresh(there)
    assert here.short() == ["gpu epoch 1", "gpu started"]
    there.news.clear()
    there.ready()
    here.hear(there)
    assert (here.short(), here.wishes) == ([], 1)
    here.refresh(there)
    assert here.short() == ["gpu answered"]
    here.refresh(there)
    assert here.short() == []


def test_an_engine_that_was_started_again() -> None:
    there, here = Announcing(), Hearing()
    backend = there.add()
    there.ready()
    here.refresh(there)
    here.took()
    there.news.clear()
    there.take(BackendSignalled("gpu", Signal.EXITED))
    again = there.restart(backend)
    here.hear(there)
    assert here.short() == ["gpu exited", "gpu epoch 2", "gpu started"]
    assert here.flushed
    here.hear(there, [BackendMoved(there.announcer.store_id("gpu") or "", backend.epoch, Signal.ANSWERED)])
    here.hear(there, there.ready())
    assert here.short() == []  # the first one is of the process before; what the new one is has not come
    here.refresh(there)
    assert here.short() == ["gpu answered"]
    there.restart(again)
    there.ready()
    here.refresh(there)  # the news of this restart are late
    assert here.short() == ["gpu epoch 3", "gpu started", "gpu answered"]


def test_a_record_that_is_older_than_the_news_changes_nothing() -> None:
    there, here = Announcing(), Hearing()
    backend = there.add()
    old = there.listing()
    here.refresh(there)
    there.restart(backend)
    here.hear(there)
    here.took()
    here.fleet.refresh([msgspec.structs.replace(row, draining=True) for row in old], ["p1"])
    assert (here.short(), here.fleet.status()[0].epoch) == ([], 2)


def asked_at_s(here: Hearing) -> float:
    """When the look began that was heard of last."""
    (event,) = here.took()
    assert isinstance(event, BackendReported)
    assert (event.report.backend_id, event.report.busy_slots) == ("gpu", 1)
    return event.report.asked_at_s


def test_reports_get_times_of_this_clock_and_never_too_late_ones() -> None:
    there, here = Announcing(), Hearing()
    there.add()
    there.ready()
    here.refresh(there)
    here.took()
    margins = []
    for delay_s in (0.0, 0.004, 0.001, 4.0, 0.0):
        there.now_s, here.now_s = there.now_s + 2, here.now_s + 2
        news, began_s = there.report(began_s_ago=0.5), here.now_s - 0.5
        here.now_s += delay_s
        there.now_s += delay_s
        here.hear(there, news)
        margins.append(began_s - asked_at_s(here))
    assert margins == pytest.approx([UNSURE_S, UNSURE_S, MARGIN_S, MARGIN_S, MARGIN_S])
    here.now_s += 3
    status = here.fleet.status()[0]
    assert (status.busy_slots, status.looked_s_ago, status.state, status.box) == (1, 3.0, "ready", "here")


def test_another_owner_has_another_clock() -> None:
    first, second, here = Announcing("p1"), Announcing("p2"), Hearing()
    for proxy in (first, second):
        proxy.add(endpoint=NETWORK)
        proxy.ready()
    second.now_s = 7.0
    here.refresh(first)
    for _ in range(5):
        here.hear(first, first.report())
    here.hear(second, second.report())
    here.hear(first, first.take(BackendLeft("gpu")))
    here.took()
    here.hear(second, second.report())
    assert asked_at_s(here) == pytest.approx(here.now_s - UNSURE_S)


def test_memory_is_told_where_models_are_loaded_when_asked_for() -> None:
    there, here = Announcing(), Hearing()
    memory = GpuMemory(24, 20, None, there.now_s)
    there.add("llama")
    there.endpoints["ollama"] = NETWORK
    there.take(BackendChanged(msgspec.structs.replace(there.add("ollama", NETWORK), engine=Engine.OLLAMA)))
    here.refresh(there)
    here.took()
    here.hear(there, there.take(*[GpuReported(name, memory, there.now_s) for name in ("llama", "ollama")]))
    here.hear(there, there.take(GpuReported("ollama", None, there.now_s)))
    at_s = here.now_s
    told = msgspec.structs.replace(memory, sampled_s=at_s)
    assert here.took() == [GpuReported("ollama", told, at_s), GpuReported("ollama", None, at_s)]


def test_lists_of_models_are_wished_for_at_the_owner() -> None:
    there, here = Announcing(), Hearing()
    there.add()
    here.refresh(there)
    here.fleet.list_models("gpu")
    here.fleet.list_models("nobody")
    assert here.told == [ListWanted(here.fleet.store_id("gpu") or "")]


def test_looks_are_wished_for_at_the_owner() -> None:
    there, here = Announcing(), Hearing()
    there.add()
    here.refresh(there)
    here.fleet.look("gpu", here.now_s + 1)
    here.fleet.look("gpu", here.now_s + 1.5)  # stands already
    here.fleet.look("gpu", here.now_s - 1)
    here.fleet.look("nobody", here.now_s)
    store_id = here.fleet.store_id("gpu") or ""
    assert here.told == [LookWanted(store_id, 1.0), LookWanted(store_id, 0.0)]
    here.hear(there, there.report())
    here.fleet.look("gpu", here.now_s)
    here.now_s += LOOK_WISH_S
    here.fleet.look("gpu", here.now_s)  # nothing came of it
    assert len(here.told) == 4


def test_an_engine_with_a_key_of_this_box_is_reached_with_the_key_file(tmp_path: Path) -> None:
    there, here = Announcing(), Hearing()
    path = tmp_path / "keys" / "gpu.key"
    path.parent.mkdir()
    there.key_files["gpu"] = str(path)
    backend = there.add(endpoint=GUARDED)
    there.ready()
    here.refresh(there)
    assert (here.short(), here.fleet.status()[0].state) == ([], "unreachable")
    assert "API key" in here.fleet.status()[0].last_error
    with pytest.raises(LookupError, match="API key"):
        here.fleet.endpoint("gpu")
    path.write_text("k" * 43)
    path.chmod(0o600)
    there.restart(backend)
    here.refresh(there)
    assert here.short() == ["gpu epoch 2", "gpu started"]
    assert here.fleet.endpoint("gpu").headers == (("Authorization", f"Bearer {'k' * 43}"),)
    assert "k" * 43 not in str(there.listing())


@pytest.mark.parametrize("content", ["secret of something else", "k" * 42, ""])
def test_no_other_file_is_taken_for_a_key(tmp_path: Path, content: str) -> None:
    there, here = Announcing(), Hearing()
    path = tmp_path / "keys" / "gpu.key"
    path.parent.mkdir()
    path.write_text(content)
    path.chmod(0o600)
    there.key_files["gpu"] = str(path)
    there.add(endpoint=GUARDED)
    here.refresh(there)
    assert here.fleet.status()[0].state == "unreachable"


def test_a_configured_key_and_a_gate() -> None:
    there = Announcing(box=THERE, gate=GATE)
    there.add(endpoint=GUARDED)
    there.add("far", msgspec.structs.replace(NETWORK, headers=KEY))
    here = Hearing(HERE, keys={"10.0.0.7:8080": KEY})
    here.refresh(there)
    endpoint = here.fleet.endpoint("gpu")
    assert (endpoint.gate, endpoint.headers, endpoint.address) == (Gate("10.0.0.7", 7000, "gpu"), (), "127.0.0.1")
    assert str(endpoint) == "http://127.0.0.1:8080 through 10.0.0.7:7000"
    there.announcer.gate = None
    there.take(BackendSignalled("gpu", Signal.MISSED), BackendSignalled("far", Signal.MISSED))
    here.took()
    here.refresh(there)
    assert here.short() == ["gpu BackendLeft"]
    assert "set box.gate there" in here.fleet.status()[1].last_error
    assert here.fleet.endpoint("far").headers == KEY
    assert here.flushed.count("gpu") == 1
