"""A policy is data; deciding is one function."""

import msgspec


class Policy(msgspec.Struct, frozen=True):
    """Weights and thresholds."""

    version: int = 0
