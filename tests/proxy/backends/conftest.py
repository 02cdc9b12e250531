"""Fixtures for the tests of the backends."""

from tests.real_engine import real_engine, real_engine_tcp, smollm2

__all__ = ["real_engine", "real_engine_tcp", "smollm2"]
