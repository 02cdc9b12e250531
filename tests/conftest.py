"""What holds for all tests.

Property tests are steady by default: the same examples each time, and nothing that depends on the machine's speed.
`pytest --hypothesis-profile=search` looks for new ones.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_SLOW_MACHINES_TOO = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=_SLOW_MACHINES_TOO)
settings.register_profile("search", deadline=None, suppress_health_check=_SLOW_MACHINES_TOO)
settings.load_profile("steady")


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="sg-") as name:
        yield Path(name)
