"""Backends of others all together: names, owners, silence and departure."""

import pytest

from proxy.backends.boxes import Box
from proxy.backends.remote import RETURN_S, known_keys
from proxy.config import BackendConfig
from proxy.endpoint import Endpoint
from proxy.store.records import BackendRecord
from scheduler.events import BackendLeft
from tests.proxy.backends.remote_scene import HERE, NETWORK, THERE, Announcing, Hearing, listed

OTHER = Endpoint("10.0.0.8:8080", 8080, "10.0.0.8")


def ready_pair() -> tuple[Announcing, Hearing]:
    there, here = Announcing(), Hearing()
    there.add()
    there.ready()
    there.news.clear()
    here.refresh(there)
    here.took()
    return there, here


def test_names_are_unique_and_stay() -> None:
    first, second = Announcing("p1", HERE), Announcing("p2", THERE)
    first.add("gpu", NETWORK)
    second.add("gpu", OTHER)
    second.add("own", Endpoint("10.0.0.8:1", 1, "10.0.0.8"))
    both = Hearing(own_names=lambda: ["own"])
    both.refresh(first, second)
    assert [each.name for each in both.fleet.status()] == ["here/gpu", "there/gpu", "there/own"]
    later = Hearing()
    later.refresh(first)
    later.refresh(first, second)
    assert [each.name for each in later.fleet.status()] == ["gpu", "own", "there/gpu"]
    assert later.fleet.local_id("10.0.0.7:8080") == "gpu"
    assert later.fleet.store_id("there/gpu") == "10.0.0.8:8080"


def test_boxes_of_one_name_have_different_backends() -> None:
    proxies = [Announcing(f"p{number}", Box("box", f"box-{number}")) for number in range(2)]
    for proxy in proxies:
        proxy.add("gpu", NETWORK if proxy is proxies[0] else OTHER)
    third = Announcing("p2", Box("box", "box-1"))
    third.add("gpu", Endpoint("10.0.0.9:1", 1, "10.0.0.9"))
    here = Hearing()
    here.refresh(*proxies, third)
    assert sorted(each.name for each in here.fleet.status()) == ["10.0.0.9:1", "box-1/gpu", "box/gpu"]


def test_what_this_proxy_looks_after_itself_is_not_taken_from_others() -> None:
    there, own = Announcing(), set[str]()
    here = Hearing(is_own=own.__contains__)
    there.add("gpu", NETWORK)
    own.add("10.0.0.7:8080")
    here.refresh(there)
    here.hear(there)
    assert (here.took(), here.fleet.status(), here.wishes) == ([], [], 0)
    own.clear()
    here.refresh(there)
    assert here.short() == ["gpu epoch 1", "gpu started"]
    own.add("10.0.0.7:8080")
    here.refresh(there)
    assert (here.short(), here.fleet.status()) == (["gpu BackendLeft"], [])


def test_news_of_an_unknown_backend_make_the_registry_read() -> None:
    there, here = Announcing(), Hearing()
    there.add()
    here.hear(there)
    assert (here.wishes > 0, here.took()) == (True, [])


@pytest.mark.parametrize("facts", [{}, {"detail": "x"}, {"name": "old", "engine": "ollama", "slots": 1}])
def test_a_record_of_another_version_is_left_alone(facts: dict[str, object]) -> None:
    here = Hearing()
    here.fleet.refresh([listed(BackendRecord("x", 0, 1, facts), "p1")], ["p1"])
    assert here.fleet.status() == []


def test_a_silent_owner_leaves_its_backends_down_and_then_gone() -> None:
    there, here = ready_pair()
    here.now_s += 10
    here.refresh(there, age_s=10)
    assert here.short() == []
    here.now_s += 6
    here.refresh(there, age_s=16)
    here.refresh(there, age_s=16)
    assert here.short() == ["gpu missed"]
    here.now_s += 1
    here.refresh(there, age_s=17)
    assert here.short() == ["gpu missed"]
    status = here.fleet.status()[0]
    assert (status.state, "is its proxy p1 running?" in status.last_error) == ("not-answering", True)
    here.hear(there, there.ready())
    here.refresh(there, age_s=16)
    assert here.short() == ["gpu answered"]
    assert here.fleet.status()[0].state == "ready"
    here.now_s += 61
    here.fleet.refresh([], ["p1"])
    assert here.took() == [BackendLeft("gpu")]
    assert here.fleet.status() == []


def test_an_absent_owner_is_silent_soon_but_not_at_once() -> None:
    there, here = ready_pair()
    here.refresh(there, present=["me"])
    here.now_s += 4
    here.refresh(there, present=["me", "p1"])
    here.refresh(there, present=["me"])
    here.now_s += 4
    here.refresh(there, present=["me"])
    assert here.short() == []
    here.now_s += 2
    here.refresh(there, present=["me"])
    assert here.short() == ["gpu missed"]


def test_a_store_that_is_away_or_lost_its_data_makes_nobody_silent() -> None:
    there, here = ready_pair()
    for _ in range(30):
        here.now_s += 10
        here.fleet.refresh(there.listing(), ["p1"], up=False)
    here.fleet.refresh([], ["me"])  # back, and empty: the others have not come yet
    here.now_s += 4
    here.fleet.refresh([], ["me"])
    assert here.short() == []
    here.refresh(there)
    here.now_s += 14
    here.refresh(there, age_s=14)
    assert here.short() == []


def test_an_owner_that_takes_its_leave_and_comes_back() -> None:
    there, here = ready_pair()
    backend_id = here.fleet.store_id("gpu") or ""
    stale = there.listing()
    here.hear(there, there.take(BackendLeft("gpu")))
    assert here.took() == [BackendLeft("gpu")]
    there.news.clear()
    here.fleet.refresh(stale, ["p1"])  # its record stays for a while
    assert (here.took(), here.fleet.local_id(backend_id)) == ([], None)
    there.add()
    here.refresh(there)  # how old that is cannot be told
    assert here.took() == []
    here.hear(there)
    here.refresh(there)
    assert here.short() == ["gpu epoch 1", "gpu started"]


def test_a_record_that_is_newer_than_the_leave_brings_a_backend_back() -> None:
    there, here = ready_pair()
    here.hear(there, there.take(BackendLeft("gpu")))
    there.add()
    here.took()
    here.now_s += 2 * RETURN_S
    here.refresh(there)
    assert here.short() == ["gpu epoch 1", "gpu started"]


def test_one_owner_is_listened_to_and_another_takes_over() -> None:
    first, second, here = Announcing("p1"), Announcing("p2"), Hearing()
    for proxy in (first, second):
        proxy.add("gpu", NETWORK)
        proxy.ready()
    second.add("alias", OTHER)
    here.refresh(first)
    here.took()
    here.refresh(second, present=["p1", "p2"])
    here.hear(second, second.report())
    here.took()
    assert here.fleet.owner("gpu") == "p1"
    here.hear(first, first.take(BackendLeft("gpu")))  # the other one looks after it too
    assert (here.took(), here.fleet.owner("gpu")) == ([], "p2")
    here.hear(second, second.report())
    assert here.short() == ["BackendReported"]

    here.refresh(first, present=["p1"])  # it left
    here.now_s += 5
    here.refresh(first, present=["p1"])
    assert here.fleet.owner("gpu") == "p2"
    first.add("gpu", NETWORK)
    here.hear(first)
    here.refresh(first, present=["p1"])
    assert here.fleet.owner("gpu") == "p1"


@pytest.mark.parametrize(("managed", "epoch", "owner"), [(True, 2, "again"), (True, 1, "p1"), (False, 2, "p1")])
def test_who_started_the_engine_anew_is_listened_to_at_once(managed: bool, epoch: int, owner: str) -> None:
    before, again, here = Announcing("p1"), Announcing("again"), Hearing()
    before.add(managed=managed)
    before.ready()
    here.refresh(before)
    here.took()
    again.add(managed=managed, epoch=epoch)
    again.ready()
    wishes = here.wishes

    here.hear(again)
    here.refresh(again, present=["p1", "again"])  # the one before was killed, and is not missed yet

    assert here.fleet.owner("gpu") == owner
    assert (here.wishes > wishes) is (owner == "again")
    assert here.short() == (["gpu epoch 2", "gpu started", "gpu answered"] if owner == "again" else [])


def test_keys_that_are_configured_here() -> None:
    configs = [
        BackendConfig(url="http://127.0.0.1:1", api_key="a"),
        BackendConfig(url="http://gpu.lan:2", api_key="b"),
        BackendConfig(url="http://gpu.lan:3"),
    ]
    assert known_keys(configs, HERE) == {
        "here-1/127.0.0.1:1": (("Authorization", "Bearer a"),),
        "gpu.lan:2": (("Authorization", "Bearer b"),),
    }


def test_of_unknown_backends_nothing_is_known() -> None:
    _, here = ready_pair()
    with pytest.raises(LookupError):
        here.fleet.endpoint("x")
    with pytest.raises(LookupError):
        here.fleet.owner("x")
    assert (here.fleet.facts("x"), here.fleet.store_id("x"), "x" in here.fleet, "gpu" in here.fleet) == (
        None,
        None,
        False,
        True,
    )
