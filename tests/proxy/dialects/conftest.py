"""Real engines for the dialect tests: the shared one, and one whose chat template knows thinking and tools."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_engine import RealEngine, real_engine, start_engine, stop_engine

__all__ = ["real_engine"]

TEMPLATE = Path(__file__).parent / "golden" / "thinker.jinja"


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """A real llama-server whose model is made to think and to call tools by its chat template."""
    directory = tmp_path_factory.mktemp("thinker")
    engine = start_engine(directory, slots=2, flags=["--chat-template", TEMPLATE.read_text()])
    yield engine
    stop_engine(engine)
