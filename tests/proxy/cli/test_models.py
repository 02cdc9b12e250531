"""`slotgate list`, golden."""

from collections.abc import Callable

import pytest

from tests.proxy.admin_stand_in import NOW
from tests.proxy.cli.conftest import Slotgate

pytestmark = pytest.mark.usefixtures("stand_in")


def test_table(slotgate: Slotgate, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.cli.models.time.time", lambda: NOW)
    golden("list.txt", slotgate("list").stdout)


def test_json(slotgate: Slotgate, golden: Callable[[str, str], None]) -> None:
    golden("list.json", slotgate("list", "--json").stdout)
