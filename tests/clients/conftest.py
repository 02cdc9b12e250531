"""Where the clients go, and the clients that are not Python."""

from collections.abc import Callable, Iterator

import pytest

from tests.clients.javascript_program import JavaScript
from tests.clients.stage import KINDS, Stage, set_up


@pytest.fixture(scope="session", params=KINDS)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Slotgate in front of engines of each kind in turn."""
    with set_up(request.param) as made:
        yield made


@pytest.fixture
def slotgate_url(stage: Stage) -> str:
    """Where the clients go."""
    return stage.url


@pytest.fixture(scope="session")
def javascript() -> Iterator[Callable[[str], JavaScript]]:
    """Gives a running program of tests/clients/javascript by its name; each is started once."""
    running: dict[str, JavaScript] = {}

    def program(name: str) -> JavaScript:
        if name not in running:
            running[name] = JavaScript(name)
        return running[name]

    yield program
    for each in running.values():
        each.stop()
