"""Scripts and their names; what they do is in test_scripts, test_slots and test_fleet_scripts."""

import redis

from proxy.store.lua import NOW, Script
from proxy.store.scripts import SCRIPTS


def test_a_script_is_called_by_the_name_that_the_store_gives_it(raw: redis.Redis) -> None:
    for sha, script in SCRIPTS.items():
        assert raw.script_load(script.text) == sha == script.sha


def test_parts_are_put_together_and_keys_are_counted() -> None:
    script = Script("one", NOW, "return now")

    assert script.text == NOW + "return now"
    assert script.command(("k1", "k2"), ("a", 1, b"x")) == ("EVALSHA", script.sha, 2, "k1", "k2", "a", 1, b"x")


def test_names_are_different() -> None:
    assert len({script.name for script in SCRIPTS.values()}) == len(SCRIPTS)
