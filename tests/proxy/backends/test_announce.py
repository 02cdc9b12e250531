"""What the fleet is told of a proxy's backends."""

import msgspec

from proxy.backends.announced import from_facts
from proxy.endpoint import Endpoint
from scheduler.domain import Backend, Engine, Report
from scheduler.events import (
    BackendChanged,
    BackendLeft,
    BackendReported,
    BackendSignalled,
    DrainRequested,
    Event,
)
from scheduler.health import Signal
from scheduler.news import BackendGone, BackendMoved, BackendSeen, BackendTold
from tests.proxy.backends.remote_scene import GATE, LOOPBACK, NETWORK, Announcing, engine_facts

ID = "here-1/127.0.0.1:8080"


def test_everything_is_told_under_the_stores_name() -> None:
    proxy = Announcing()
    backend = proxy.add()
    assert proxy.news == [
        BackendTold(msgspec.structs.replace(backend, id=ID)),
        BackendMoved(ID, 1, Signal.STARTED),
    ]
    (seen,) = proxy.report(began_s_ago=0.25)
    assert isinstance(seen, BackendSeen)
    assert (seen.report.backend_id, seen.report.asked_at_s, seen.began_s_ago) == (ID, proxy.now_s - 0.25, 0.25)
    assert (proxy.announcer.store_id("gpu"), proxy.announcer.local_id(ID)) == (ID, "gpu")
    assert proxy.take(BackendLeft("gpu")) == [BackendGone(ID)]
    assert (proxy.announcer.store_id("gpu"), proxy.announcer.local_id(ID)) == (None, None)


def test_what_is_not_the_engines_is_not_told() -> None:
    proxy = Announcing()
    proxy.add()
    signals: list[Event] = [
        BackendSignalled("gpu", signal) for signal in (Signal.FAILED, Signal.SUCCEEDED, Signal.DRAIN)
    ]
    assert proxy.take(*signals, DrainRequested("gpu")) == []
    unknown: list[Event] = [
        BackendSignalled("x", Signal.MISSED),
        BackendReported(Report("x", 1, 0.0)),
        BackendLeft("x"),
    ]
    assert proxy.take(*unknown) == []


def test_who_knows_nothing_is_told_everything() -> None:
    proxy = Announcing()
    backend = proxy.add()
    proxy.ready()
    proxy.report()
    told, moved, seen = proxy.announcer.retold()
    assert (told, moved) == (
        BackendTold(msgspec.structs.replace(backend, id=ID)),
        BackendMoved(ID, 1, Signal.ANSWERED),
    )
    assert isinstance(seen, BackendSeen)
    proxy.now_s += 2
    (_, _, later) = proxy.announcer.retold()
    assert isinstance(later, BackendSeen)
    assert later.began_s_ago == 2.0
    proxy.restart(backend)
    assert [type(news) for news in proxy.announcer.retold()] == [BackendTold, BackendMoved]


def test_records_are_written_again_when_something_changed() -> None:
    proxy = Announcing(gate=GATE)
    assert proxy.announcer.changed_records() is None
    backend = proxy.add()
    first = proxy.announcer.changed_records()
    assert first is not None
    proxy.ready()
    second = proxy.announcer.changed_records()
    proxy.report()
    third = proxy.announcer.changed_records()
    proxy.known["gpu"] = engine_facts(version="2")
    proxy.report()
    fourth = proxy.announcer.changed_records()
    proxy.take(BackendLeft("gpu"))
    assert (third, proxy.announcer.changed_records(), proxy.announcer.changed_records()) == (None, [], None)
    assert second is not None
    assert fourth is not None
    before, after, last = [from_facts(records[0].facts) for records in (first, second, fourth)]
    assert before is not None
    assert after is not None
    assert last is not None
    assert (before.ready, before.facts, after.ready, after.facts_epoch) == (False, None, True, backend.epoch)
    assert (last.facts, after.gate and after.gate.backend) == (engine_facts(version="2"), "gpu")


def test_the_epoch_is_the_stores_only_where_all_know_the_same() -> None:
    proxy = Announcing()
    proxy.add("ours", LOOPBACK, managed=True, epoch=9)
    proxy.add("theirs", NETWORK, epoch=8)
    assert [(record.backend_id, record.epoch, record.running_limit) for record in proxy.announcer.records()] == [
        (ID, 9, 2),
        ("10.0.0.7:8080", 0, 2),
    ]


def test_facts_of_the_process_before_are_not_those_of_the_new_one() -> None:
    proxy = Announcing()
    backend = proxy.add()
    proxy.ready()
    proxy.restart(backend)
    announced = from_facts(proxy.announcer.records()[0].facts)
    assert announced is not None
    assert (announced.facts_epoch, announced.backend.epoch, announced.ready) == (1, 2, False)
    proxy.ready()
    announced = from_facts(proxy.announcer.records()[0].facts)
    assert announced is not None
    assert (announced.facts_epoch, announced.ready) == (2, True)


def test_an_engine_that_moves_to_another_address_is_another_one_to_the_store() -> None:
    proxy = Announcing()
    backend = proxy.add()
    proxy.endpoints["gpu"] = Endpoint("127.0.0.1:8081", 8081, "127.0.0.1")
    moved = msgspec.structs.replace(backend, epoch=2)
    other = "here-1/127.0.0.1:8081"
    assert proxy.take(BackendChanged(moved)) == [
        BackendGone(ID),
        BackendTold(msgspec.structs.replace(moved, id=other)),
    ]
    assert [record.backend_id for record in proxy.announcer.records()] == [other]


def test_without_an_address_it_is_told_but_not_announced() -> None:
    proxy = Announcing()
    backend = Backend("x", Engine.OLLAMA, 1, 1)
    assert proxy.take(BackendChanged(backend)) == [BackendTold(msgspec.structs.replace(backend, id="here-1/x"))]
    assert proxy.announcer.records() == []


def test_no_key_is_announced() -> None:
    proxy = Announcing()
    proxy.key_files["gpu"] = "/state/keys/gpu.key"
    secret = (("Authorization", "Bearer very-secret"),)
    proxy.add(endpoint=msgspec.structs.replace(LOOPBACK, headers=secret))
    announced = from_facts(proxy.announcer.records()[0].facts)
    assert announced is not None
    assert "very-secret" not in repr(announced)
    assert (announced.guarded, announced.key_file) == (True, "/state/keys/gpu.key")
