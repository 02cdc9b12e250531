"""`slotgate policy`, golden; and what is said of changes."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from proxy.admin_api import PolicyAnswer, PolicyChange
from proxy.cli.policy import plain
from scheduler.presets import MEANINGS
from tests.proxy.admin_stand_in import AdminStandIn
from tests.proxy.cli.conftest import Slotgate

Golden = Callable[[str, str], None]


def test_show(slotgate: Slotgate, golden: Golden, stand_in: AdminStandIn) -> None:
    result = slotgate("policy", "show")
    assert (result.exit_code, result.stderr) == (0, "")
    golden("policy.txt", result.stdout)


def test_show_as_json(slotgate: Slotgate, golden: Golden, stand_in: AdminStandIn) -> None:
    golden("policy.json", slotgate("policy", "show", "--json").stdout)


def test_show_some_keys(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    result = slotgate("policy", "show", "hold_s", "order")
    assert result.stdout == (
        "hold_s = 0.5\n  Longest wait; 0: never.\n  origin set; default 1; takes a number from 0 to 1000000000\n\n"
        "order = fcfs\n  Which goes next.\n  origin config; default cost; takes cost or fcfs\n"
    )
    told = json.loads(slotgate("policy", "show", "order", "--json").stdout)
    assert [setting["key"] for setting in told["settings"]] == ["order"]
    result = slotgate("policy", "show", "hols_s")
    assert (result.exit_code, result.stderr) == (1, "error: hols_s: unknown key\ndid you mean hold_s?\n")


def test_what_is_not_in_force_is_told(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.policy.problems = ["/x/policy.toml: hols: unknown key"]
    assert slotgate("policy", "show").stderr == "note: not in force: /x/policy.toml: hols: unknown key\n"


def test_presets(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    lines = slotgate("policy", "preset").stdout.splitlines()
    assert lines[1].split() == ["balanced", "the", "defaults", "-"]
    assert lines[2].split() == ["lmetric*", "the", "product", "active_ms=0.001", "choose_slot=false"]
    assert len(json.loads(slotgate("policy", "preset", "--json").stdout)) == 2


def test_set(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    result = slotgate("policy", "set", "hold_s=0.25", "order = fcfs")
    assert result.exit_code == 0
    assert result.stdout == "hold_s = 0.25 (was 0.5)\n"
    assert result.stderr == "policy 5 is in force, preset lmetric\nundo: slotgate policy set hold_s=0.5\n"
    assert [asked for asked in stand_in.asked if asked.startswith("POST")] == ["POST /policy/set"]
    assert stand_in.bodies == [{"set": {"hold_s": "0.25", "order": "fcfs"}}]
    result = slotgate("policy", "set", "hold_s=0.25", "--json")
    assert json.loads(result.stdout)["version"] == 5
    assert result.stderr == ""


def live(stand_in: AdminStandIn, **values: float) -> PolicyAnswer:
    """The policy with just these keys set live."""
    answer = msgspec.convert(msgspec.to_builtins(stand_in.policy), PolicyAnswer)
    for setting in answer.settings:
        setting.origin = "set" if setting.key in values else "default"
        setting.value = values.get(setting.key, setting.value)
    return answer


def test_setting_a_key_to_what_it_is_pins_it(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.policy, stand_in.policy_after = live(stand_in), live(stand_in, window=64)
    stand_in.changed.changes = []
    result = slotgate("policy", "set", "window=64")
    assert result.stdout == "window = 64 (as before, but set live now: it holds whatever is configured)\n"
    assert result.stderr == "policy 5 is in force, preset lmetric\nundo: slotgate policy reset window\n"


def test_undoing_restores_what_was_not_set_before(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.policy = live(stand_in, hold_s=0.5)
    stand_in.policy_after = live(stand_in, hold_s=0.25, window=8)
    stand_in.changed.changes.append(PolicyChange("window", 64, 8, "set"))
    result = slotgate("policy", "set", "hold_s=0.25", "window=8")
    assert result.stderr.splitlines()[1] == "undo: slotgate policy reset window && slotgate policy set hold_s=0.5"


@pytest.mark.parametrize("arguments", [("reset", "window"), ("reset",), ("preset", "balanced")])
def test_what_is_no_longer_set_is_told(slotgate: Slotgate, stand_in: AdminStandIn, arguments: tuple[str, ...]) -> None:
    stand_in.policy, stand_in.policy_after = live(stand_in, window=64), live(stand_in)
    stand_in.changed.changes = []
    result = slotgate("policy", *arguments)
    assert result.stdout == "window = 64 (as before, but no longer set live)\n"


def test_the_documentation_has_the_presets_as_they_are_told() -> None:
    page = (Path(__file__).parents[3] / "docs" / "policy.md").read_text()
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (.+) \|$", page.partition("## Presets")[2].partition("\n## ")[0], re.MULTILINE
    )
    assert rows == list(MEANINGS.items())


def test_nothing_changed(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.changed.changes = []
    result = slotgate("policy", "set", "hold_s=0.5")
    assert (result.stdout, "undo" in result.stderr) == ("nothing changed\n", False)


def test_choosing_and_resetting(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    for arguments in (("preset", "sticky"), ("reset", "hold_s"), ("reset",)):
        assert slotgate("policy", *arguments).stdout == "hold_s = 0.25 (was 0.5)\n"
    assert stand_in.bodies == [{"preset": "sticky"}, {"keys": ["hold_s"]}, {"keys": []}]


def test_refusals(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.refusal = "hold_s: x is not a number from 0 to 1000000000\n  fix: this"
    result = slotgate("policy", "set", "hold_s=x")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"error: {stand_in.refusal}\n")


@pytest.mark.parametrize("arguments", [("set",), ("set", "hold_s"), ("set", "=1"), ("preset", "a", "b")])
def test_wrong_usage(slotgate: Slotgate, stand_in: AdminStandIn, arguments: tuple[str, ...]) -> None:
    assert slotgate("policy", *arguments).exit_code == 2
    assert stand_in.asked == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (20.0, "20"), (0.001, "0.001"), (64, "64"), ("cost", "cost"), (1e9, "1000000000")],
)
def test_values_are_written_as_they_are_set(value: bool | float | str, text: str) -> None:
    assert plain(value) == text
