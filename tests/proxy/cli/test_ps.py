"""`slotgate ps`, golden."""

from collections.abc import Callable

import pytest

from tests.proxy.admin_stand_in import NOW, AdminStandIn
from tests.proxy.cli.conftest import Slotgate

pytestmark = pytest.mark.usefixtures("stand_in")


def test_table(slotgate: Slotgate, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.cli.ps.time.time", lambda: NOW)
    result = slotgate("ps", "--requests")
    assert result.exit_code == 0
    golden("ps.txt", result.stdout)


def test_models_alone(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    lines = slotgate("ps").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "llama3:latest", "qwen:7b", "old", "phi"]


def test_json(slotgate: Slotgate, golden: Callable[[str, str], None]) -> None:
    result = slotgate("ps", "--json")
    assert result.stderr == ""
    golden("ps.json", result.stdout)
