"""What each key takes, and messages that name the key, the value, the range and the nearest right key."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.policy_keys import (
    OF_THE_CONFIGURATION,
    PolicyError,
    checked,
    default,
    documentation,
    fields,
    known_preset,
    nearest,
    problems_of,
    takes,
)
from scheduler.policy import Policy
from scheduler.presets import PRESETS


def message(key: str, value: object) -> str:
    with pytest.raises(PolicyError) as caught:
        checked(key, value)
    return str(caught.value)


def test_every_key_but_the_version_is_there_with_words_for_its_range_and_meaning() -> None:
    assert list(fields()) == [name for name in Policy.__struct_fields__ if name != "version"]
    assert [key for key in fields() if not takes(key)] == []
    assert [key for key in fields() if not documentation().get(key)] == []
    assert {key: default(key) for key in fields()} == {
        key: value for key, value in msgspec.structs.asdict(Policy()).items() if key != "version"
    }


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("hold_ratio", "a number from 0 to 1"),
        ("token_target_ms", "a number above 0 to 1000000000"),
        ("window", "a whole number from 0 to 1000000"),
        ("choose_slot", "true or false"),
        ("order", "cost or fcfs"),
    ],
)
def test_ranges_in_words(key: str, words: str) -> None:
    assert takes(key) == words


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("hold_s", "0.5", 0.5),
        ("hold_s", 2, 2.0),
        ("window", "128", 128),
        ("choose_slot", "false", False),
        ("choose_slot", True, True),
        ("order", "fcfs", "fcfs"),
    ],
)
def test_values_are_converted(key: str, given: object, value: object) -> None:
    found = checked(key, given)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("given", ["1.5", "-0.1", "nan", "inf", "much", "", 1.5, True, None, [0.5], {}])
def test_what_is_out_of_range_is_told_with_the_range(given: object) -> None:
    text = message("hold_ratio", given)
    assert text.startswith("hold_ratio: ")
    assert "is not a number from 0 to 1\n" in text
    assert "Default: 0.7" in text


@pytest.mark.parametrize(("key", "given"), [("window", "1.5"), ("window", 2.5), ("choose_slot", 1), ("order", "lifo")])
def test_other_types(key: str, given: object) -> None:
    assert f"is not {takes(key)}" in message(key, given)


@pytest.mark.parametrize(("key", "near"), [("hld_s", "hold_s"), ("prefil_weight", "prefill_weight")])
def test_an_unknown_key_names_the_nearest(key: str, near: str) -> None:
    assert message(key, 1) == f"{key}: unknown key\n  fix: did you mean {near}?"


def test_an_unknown_key_like_no_other() -> None:
    assert nearest("zzz") == "`slotgate policy show` lists all keys"
    assert "unknown key" in message("version", 3)


@pytest.mark.parametrize("key", OF_THE_CONFIGURATION)
def test_what_the_configuration_sets_is_refused_with_its_option(key: str) -> None:
    assert OF_THE_CONFIGURATION[key] in message(key, 5)


def test_presets_by_name() -> None:
    assert [known_preset(name) for name in PRESETS] == list(PRESETS)
    with pytest.raises(PolicyError, match="did you mean throughput"):
        known_preset("thruput")
    with pytest.raises(PolicyError, match="known: balanced, "):
        known_preset("zzz")


def test_all_problems_at_once() -> None:
    found = list(problems_of({"hold_s": 1, "window": -1, "hol_s": 1}))
    assert [problem.key for problem in found] == ["window", "hol_s"]


@given(st.sampled_from(list(fields())), st.one_of(st.text(max_size=12), st.floats(), st.integers(), st.booleans()))
def test_what_is_accepted_makes_a_valid_policy(key: str, given: Any) -> None:
    with contextlib.suppress(PolicyError):
        value = checked(key, given)
        assert msgspec.structs.asdict(msgspec.convert({key: value}, Policy))[key] == value
