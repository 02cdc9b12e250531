"""What one decision is about: the argument of every filter and every cost term. Owns no rules."""

import msgspec

from scheduler.domain import Request
from scheduler.policy import Policy


class Case(msgspec.Struct, frozen=True):
    """A request to be placed, under a policy, at a time."""

    request: Request
    policy: Policy
    now_s: float
    tried: frozenset[str] = frozenset()
    """Backends that already failed this request."""
    alive: bool = False
    """Some backend is up: one that never told its models need not be waited for."""
