"""`slotgate version` and `--version`."""

import json

from proxy import __version__
from tests.proxy.cli.conftest import Slotgate


def test_version(slotgate: Slotgate) -> None:
    assert slotgate("version").stdout == f"slotgate {__version__}\n"
    assert slotgate("--version").stdout == f"slotgate {__version__}\n"
    assert set(json.loads(slotgate("version", "--json").stdout)) == {"version", "python", "machine"}
