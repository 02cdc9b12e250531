import pytest

from proxy.dialects import contract
from proxy.dialects.contract import EngineError
from proxy.relay import Collector


def test_a_whole_answer_is_kept() -> None:
    collector = Collector()
    collector.start(200, [("Content-Type", "application/json"), ("content-length", "9")])
    collector.write(b"[1,")
    collector.write(b"2]", last=True)

    assert collector.head_sent
    assert (collector.status, collector.headers) == (200, [("Content-Type", "application/json")])
    assert collector.body == b"[1,2]"


def test_a_refusal_is_kept() -> None:
    collector = Collector()
    collector.reply(400, [("X", "y")], b"no")
    assert (collector.status, collector.headers, collector.body) == (400, [("X", "y")], b"no")


def test_it_holds_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "MAX_HELD_BYTES", 4)
    collector = Collector()
    collector.write(b"1234")
    with pytest.raises(EngineError, match="larger than 4 bytes"):
        collector.write(b"5")
