"""The policy document: layers, versions, and a file that survives restarts, editors and full disks."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import LimitsConfig, PolicyConfig
from proxy.policies import PolicyDocument, Shared
from proxy.policy_keys import PolicyError
from scheduler.policy import Policy
from scheduler.presets import PRESETS, ROUTED, preset_policy


def document(path: Path, limits: LimitsConfig | None = None, **config: Any) -> PolicyDocument:
    return PolicyDocument(path / "policy.toml", PolicyConfig.model_validate(config), limits or LimitsConfig())


def origins(policies: PolicyDocument) -> dict[str, str]:
    """Of the keys that are not at their default."""
    return {setting.key: setting.origin for setting in policies.answer().settings if setting.origin != "default"}


def test_without_anything_it_is_the_default_policy(tmp_path: Path) -> None:
    policies = document(tmp_path)
    assert policies.policy == Policy(version=1)
    assert (policies.preset, origins(policies), policies.problems) == ("balanced", {}, [])


def test_layers_later_ones_win(tmp_path: Path) -> None:
    policies = document(tmp_path, preset="round-robin", set={"window": 8, "hold_s": 0.25})
    assert (policies.policy.order, policies.policy.window, policies.policy.hold_s) == ("fcfs", 8, 0.25)
    policies.set({"hold_s": "0.5"})
    assert policies.policy.hold_s == 0.5
    found = origins(policies)
    assert (found["order"], found["window"], found["hold_s"]) == ("preset", "config", "set")
    assert policies.answer().preset_origin == "config"


def test_a_preset_settles_routing_and_leaves_the_rest(tmp_path: Path) -> None:
    policies = document(tmp_path, preset="round-robin", set={"hold_s": 0.25, "tenant_max_waiting": 9})
    policies.set({"prefill_weight": 3, "tenant_max_running": 4})
    policies.choose("balanced")
    assert {key: getattr(policies.policy, key) for key in ROUTED} == {key: getattr(Policy(), key) for key in ROUTED}
    assert (policies.policy.tenant_max_running, policies.policy.tenant_max_waiting) == (4, 9)
    assert origins(policies) == {"tenant_max_running": "set", "tenant_max_waiting": "config"}
    assert policies.answer().preset_origin == "set"


def test_reset_of_keys_and_of_everything(tmp_path: Path) -> None:
    policies = document(tmp_path, set={"window": 8})
    policies.choose("latency")
    policies.set({"window": 16, "age_credit": 2})
    policies.reset(["age_credit"])
    assert (policies.policy.age_credit, policies.policy.window) == (PRESETS["latency"]["age_credit"], 16)
    answer = policies.reset()
    assert (policies.preset, policies.policy.window) == ("balanced", 8)
    assert {change.key for change in answer.changes} == {"window", *PRESETS["latency"]}
    assert policies.reset(["hold_s"]).changes == []
    with pytest.raises(PolicyError, match="did you mean window"):
        policies.reset(["windw"])


def test_what_changed_is_told_and_applied_once(tmp_path: Path) -> None:
    policies = document(tmp_path)
    applied: list[Policy] = []
    policies.on_change = applied.append
    answer = policies.set({"hold_s": "0.5", "window": "64"})
    assert [(change.key, change.before, change.after, change.origin) for change in answer.changes] == [
        ("hold_s", 1.0, 0.5, "set")
    ]
    assert applied == [Policy(version=2, hold_s=0.5)]
    assert policies.set({"hold_s": 0.5}).changes == []
    assert policies.choose("balanced").version == 3
    assert [policy.version for policy in applied] == [2, 3]


def test_wrong_changes_change_nothing(tmp_path: Path) -> None:
    policies = document(tmp_path)
    with pytest.raises(PolicyError) as caught:
        policies.set({"hold_s": "0.5", "hold_ratio": "2", "windw": "1", "max_waiting": "1"})
    assert [problem.key for problem in caught.value.problems] == ["hold_ratio", "windw", "max_waiting"]
    with pytest.raises(PolicyError, match="none called 'fast'"):
        policies.choose("fast")
    assert policies.policy == Policy(version=1)
    assert document(tmp_path).policy == Policy(version=1)


def test_it_survives_a_restart(tmp_path: Path) -> None:
    first = document(tmp_path)
    first.choose("sticky")
    first.set({"window": 8, "choose_slot": "false"})
    again = document(tmp_path)
    assert again.policy == first.policy
    assert again.answer() == first.answer()
    assert tomllib.loads((tmp_path / "policy.toml").read_text())["set"] == {"window": 8, "choose_slot": False}


def test_another_configuration_at_the_next_start_is_another_version(tmp_path: Path) -> None:
    assert document(tmp_path).policy.version == 1
    assert document(tmp_path, preset="balanced").policy.version == 1
    assert document(tmp_path, set={"hold_s": 0.5}).policy.version == 2
    assert document(tmp_path, set={"hold_s": 0.5}).policy.version == 2
    assert document(tmp_path, LimitsConfig(max_waiting=5), set={"hold_s": 0.5}).policy.version == 3


def test_limits_of_the_configuration_win_and_follow_a_reload(tmp_path: Path) -> None:
    policies = document(tmp_path, LimitsConfig(max_waiting=5))
    applied: list[Policy] = []
    policies.on_change = applied.append
    assert origins(policies) == {"max_waiting": "config"}
    policies.choose("latency")
    assert policies.reconfigure(PolicyConfig(preset="sticky", set={"window": 8}), LimitsConfig(max_attempts=2))
    assert (policies.preset, policies.policy.window) == ("latency", 8)
    assert (policies.policy.max_waiting, policies.policy.max_attempts) == (LimitsConfig().max_waiting, 2)
    assert applied[-1] == policies.policy
    assert not policies.reconfigure(PolicyConfig(preset="sticky", set={"window": 8}), LimitsConfig(max_attempts=2))
    assert [policy.version for policy in applied] == [2, 3]


def test_a_wrong_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"policy\.set\.hold_ratio: 2 is not"):
        document(tmp_path, set={"hold_ratio": 2})
    policies = document(tmp_path)
    with pytest.raises(PolicyError):
        policies.reconfigure(PolicyConfig(set={"x": 1}), LimitsConfig())
    assert policies.policy == Policy(version=1)


def test_parts_of_the_file_that_are_wrong_are_left_out_and_told(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('version = 7\npreset = "fastest"\n[set]\nhold_s = 0.5\nwindow = -1\nhols = 1\n')
    policies = document(tmp_path)
    assert (policies.policy.version, policies.policy.hold_s, policies.policy.window) == (8, 0.5, 64)
    assert [problem.removeprefix(f"{file}: ") for problem in policies.problems] == [
        "preset: there is none called 'fastest'",
        "window: -1 is not a whole number from 0 to 1000000",
        "hols: unknown key",
    ]
    policies.set({"hold_s": 0.5})
    assert policies.problems == []
    assert document(tmp_path).problems == []


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (b"version = 7\n[set\n", 8),
        (b"version = 123456\n[set\n", 123_457),
        (b"version = 999998\n[set\n", 999_999),
        (b"version = 999999\n[set\n", 1_000_000),
        (b"version = 1000000\n[set\n", 1),
        (b"a = " + b"[" * 5000 + b"]" * 5000, 1),
        (b"version = " + b"1" * 5000, 1),
        (b"version = 9999999\n[set\n", 1),
        (b"version = 10000000\n[set\n", 1),
        (b"\xff\xfe", 1),
        (b"", 1),
        (b"set = 3\nversion = true\n", 1),
        (b"version = 99999999999999999999\n", 1),
        (b"preset = 5\n", 1),
        (b"preset = []\n", 1),
    ],
)
def test_a_file_that_was_edited_badly_keeps_nobody_from_serving(tmp_path: Path, content: bytes, version: int) -> None:
    (tmp_path / "policy.toml").write_bytes(content)
    policies = document(tmp_path)
    assert policies.policy == Policy(version=version)
    assert document(tmp_path).policy.version == version


def test_versions_come_round(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("version = 999999\n")
    policies = document(tmp_path)
    assert policies.policy.version == 1_000_000
    policies.set({"hold_s": 0.5})
    assert policies.policy == Policy(version=1, hold_s=0.5)
    assert document(tmp_path).policy == policies.policy


def test_a_file_that_is_no_toml_is_kept_aside(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("version = 7\n[set\nhold_s = 0.5\n")
    policies = document(tmp_path)
    assert "cannot be read" in policies.problems[0]
    assert "hold_s = 0.5" in (tmp_path / "policy.toml.unreadable").read_text()


def test_what_cannot_be_kept_is_not_in_force(tmp_path: Path) -> None:
    policies = document(tmp_path)
    (tmp_path / "policy.toml.new").mkdir()
    with pytest.raises(PolicyError, match=r"cannot write .*policy\.toml"):
        policies.set({"hold_s": 0.5})
    assert policies.policy == Policy(version=1)
    assert policies.reconfigure(PolicyConfig(set={"hold_s": 0.5}), LimitsConfig())
    assert policies.policy == Policy(version=2, hold_s=0.5)


COMMANDS = st.one_of(
    st.tuples(st.just("choose"), st.sampled_from(list(PRESETS))),
    st.tuples(st.just("set"), st.sampled_from([("hold_s", 0.5), ("order", "fcfs"), ("window", 9), ("window", 64)])),
    st.tuples(st.just("reset"), st.sampled_from(["", "hold_s", "window"])),
)


@given(st.lists(COMMANDS, max_size=8))
def test_a_restart_at_any_point_changes_nothing(tmp_path_factory: pytest.TempPathFactory, commands: list[Any]) -> None:
    directory = tmp_path_factory.mktemp("state")
    policies = document(directory, preset="lmetric", set={"window": 32})
    for command, argument in commands:
        before = policies.policy
        if command == "choose":
            policies.choose(argument)
            assert {key: getattr(policies.policy, key) for key in ROUTED} == {
                key: getattr(preset_policy(argument), key) for key in ROUTED
            }
        elif command == "set":
            policies.set(dict([argument]))
        else:
            policies.reset([argument] if argument else [])
        same = [getattr(before, key) for key in Policy.__struct_fields__[1:]] == [
            getattr(policies.policy, key) for key in Policy.__struct_fields__[1:]
        ]
        assert policies.policy.version == before.version + (0 if same else 1)
        again = document(directory, preset="lmetric", set={"window": 32})
        assert (again.policy, again.answer()) == (policies.policy, policies.answer())


def test_what_was_set_elsewhere_is_taken_over_and_kept(tmp_path: Path) -> None:
    policies = document(tmp_path, set={"window": 8})
    policies.set({"hold_s": 0.5})
    applied: list[Policy] = []
    policies.on_change = applied.append
    there = Shared(9, "latency", {"age_credit": 2.0})
    assert policies.adopt(there)
    assert not policies.adopt(there)
    assert [(policy.version, policy.age_credit, policy.hold_s) for policy in applied] == [
        (9, 2.0, PRESETS["latency"].get("hold_s", 1.0))
    ]
    again = document(tmp_path, set={"window": 8})
    assert (again.shared, again.policy) == (there, policies.policy)
    assert policies.set({"hold_s": 0.25}).version == 10


def test_what_is_wrong_in_a_policy_from_elsewhere_is_left_out(tmp_path: Path) -> None:
    policies = document(tmp_path)
    policies.adopt(Shared(3, "fastest", {"window": -1, "hold_s": 0.5}))
    assert (policies.policy.version, policies.policy.hold_s, policies.preset) == (3, 0.5, "balanced")
    assert [problem.partition(":")[0] for problem in policies.problems] == ["the fleet's policy"] * 2
    assert not any(problem.startswith(str(tmp_path)) for problem in policies.problems)


def test_a_process_that_does_not_keep_the_file_leaves_it_alone(tmp_path: Path) -> None:
    document(tmp_path).set({"hold_s": 0.5})
    before = (tmp_path / "policy.toml").read_bytes()
    other = PolicyDocument(tmp_path / "policy.toml", PolicyConfig(), LimitsConfig(), keeps_file=False)
    assert other.set({"hold_s": 0.25}).version == 3
    other.adopt(Shared(9, "latency"))
    assert (tmp_path / "policy.toml").read_bytes() == before
    (tmp_path / "policy.toml").write_bytes(b"\xff")
    PolicyDocument(tmp_path / "policy.toml", PolicyConfig(), LimitsConfig(), keeps_file=False)
    assert [path.name for path in tmp_path.iterdir()] == ["policy.toml"]
