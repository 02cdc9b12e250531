"""Presets are valid policies, and each settles the same keys."""

import msgspec
import pytest

from scheduler.policy import Policy
from scheduler.presets import DEFAULT, MEANINGS, PRESETS, ROUTED, preset_policy, settled


@pytest.mark.parametrize("name", PRESETS)
def test_each_is_a_valid_policy_and_has_a_meaning(name: str) -> None:
    assert msgspec.convert(msgspec.to_builtins(preset_policy(name)), Policy) == preset_policy(name)
    assert MEANINGS[name]


def test_names_and_meanings_agree() -> None:
    assert list(MEANINGS) == list(PRESETS)
    assert next(iter(PRESETS)) == DEFAULT


def test_balanced_is_the_default_policy() -> None:
    assert preset_policy("balanced") == Policy()


@pytest.mark.parametrize("name", PRESETS)
def test_no_change_is_idle(name: str) -> None:
    default = msgspec.structs.asdict(Policy())
    assert [key for key, value in PRESETS[name].items() if value == default[key]] == []


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("before", PRESETS)
def test_a_preset_undoes_whatever_another_changed(before: str, name: str) -> None:
    layered = msgspec.structs.replace(preset_policy(before), **settled(name))
    assert layered == preset_policy(name)


def test_presets_leave_health_retries_waits_and_tenants_alone() -> None:
    others = ("version", "failures_until_down", "max_attempts", "max_waiting", "tenant_max_running", "quantum_tokens")
    assert not set(ROUTED) & set(others)


@pytest.mark.parametrize("name", ["round-robin", "least-busy"])
def test_those_for_comparison_ignore_prefixes_and_never_wait(name: str) -> None:
    policy = preset_policy(name)
    assert (policy.prefill_weight, policy.stall_weight, policy.pending_weight, policy.loss_weight) == (0, 0, 0, 0)
    assert (policy.order, policy.hold_s, policy.choose_slot) == ("fcfs", 0, False)


def test_lmetric_is_the_published_product() -> None:
    """Uncached work times (running + 1), and nothing else that could outweigh a token of it."""
    policy = preset_policy("lmetric")
    assert (policy.prefill_weight, policy.stall_weight) == (1.0, 1.0)
    assert (policy.pending_weight, policy.loss_weight, policy.hold_s) == (0.0, 0.0, 0.0)
    assert 0 < policy.active_ms < 0.01


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        settled("fastest")
