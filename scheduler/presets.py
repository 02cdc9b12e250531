"""Ready-made policies: each is a set of changes to `Policy()`. Owns no rule; the rules are in `costs` and `matching`.

All presets together change the keys in `ROUTED`, and each settles all of these: what it does not name is at its
default. So one preset can take the place of another, and what is set of retries, waits or tenants stays.
"""

from collections.abc import Mapping

import msgspec

from scheduler.policy import Policy

Value = bool | int | float | str
"""What a key of a policy may hold."""

DEFAULT = "balanced"

_PLAIN: dict[str, Value] = {
    "pending_weight": 0.0,
    "loss_weight": 0.0,
    "choose_slot": False,
    "order": "fcfs",
    "hold_s": 0.0,
}
"""What rules without a picture of slots have in common."""

PRESETS: dict[str, dict[str, Value]] = {
    "balanced": {},
    "latency": {"age_credit": 2.0, "stall_weight": 1.0, "token_target_ms": 30.0},
    "throughput": {"age_credit": 0.25, "age_guard_s": 60.0, "hold_s": 3.0, "token_target_ms": 100.0},
    "lmetric": {
        "active_ms": 0.001,
        "stall_weight": 1.0,
        **_PLAIN,
    },
    "sticky": {
        "stall_weight": 0.0,
        "pending_weight": 0.0,
        "age_guard_s": 60.0,
        "hold_s": 5.0,
        "hold_ratio": 0.9,
    },
    "least-busy": {
        "prefill_weight": 0.0,
        "stall_weight": 0.0,
        **_PLAIN,
    },
    "round-robin": {
        "active_ms": 0.0,
        "prefill_weight": 0.0,
        "stall_weight": 0.0,
        **_PLAIN,
    },
}
"""By name, the one to start with first. In `lmetric` the tiny `active_ms` only separates backends of equal product."""

MEANINGS: dict[str, str] = {
    "balanced": "prefixes, slots and load in one cost; the defaults",
    "latency": "short tails and smooth streams: waiting counts more, and so does stalling what runs",
    "throughput": "more reuse per card: waits longer for the right backend, at the price of the slowest requests",
    "lmetric": "uncached work times one more than what runs there; engines choose slots; for comparison",
    "sticky": "conversations stay where their prefix is, even if they must wait there",
    "least-busy": "the backend with the fewest seats in use; ignores prefixes; for comparison",
    "round-robin": "one backend after the other; ignores prefixes and load; for comparison",
}
"""One line on each."""

ROUTED: tuple[str, ...] = tuple(
    name for name in Policy.__struct_fields__ if any(name in changes for changes in PRESETS.values())
)
"""The keys that a preset settles, in the order of `Policy`."""


def settled(preset: str) -> dict[str, Value]:
    """The value of each key in `ROUTED` under a preset; KeyError if there is no such preset."""
    changes = PRESETS[preset]
    defaults: Mapping[str, Value] = msgspec.structs.asdict(Policy())
    return {name: changes.get(name, defaults[name]) for name in ROUTED}


def preset_policy(preset: str) -> Policy:
    """The defaults with a preset's changes; KeyError if there is no such preset."""
    return msgspec.convert(PRESETS[preset], Policy)
