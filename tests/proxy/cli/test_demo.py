"""`slotgate demo` hands over, and says so where there is nothing to hand over to."""

import sys
import types

import pytest

from tests.proxy.cli.conftest import Slotgate


def test_hands_over(slotgate: Slotgate, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, object]] = []

    def run(**options: object) -> int:
        calls.append(options)
        return 1

    stand_in = types.ModuleType("proxy.demo")
    stand_in.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "proxy.demo", stand_in)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    assert slotgate("demo", "--once", "--listen=127.0.0.1:0").exit_code == 1
    assert calls == [{"once": True, "listen": "127.0.0.1:0", "backends": 2, "requests": 12}]
    assert slotgate("demo", "--backends=0").exit_code == 2


def test_absent(slotgate: Slotgate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    result = slotgate("demo")
    assert result.exit_code == 1
    assert "make demo" in result.stderr
