import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import sse
from proxy.dialects.contract import EngineError
from proxy.dialects.sse import Events, data_of
from tests.proxy.dialects.test_progress import pieces


@given(st.lists(st.sampled_from([b"data: {}\n\n", b":\n\n", b"event: x\ndata: 1\n\n"])), st.lists(st.integers(0, 999)))
def test_events_join_to_the_input(events: list[bytes], cuts: list[int]) -> None:
    reader = Events()
    out: list[bytes] = []
    for piece in pieces(b"".join(events) + b"data: x", cuts):
        out += reader.feed(piece)
    assert out == events
    assert reader.rest() == b"data: x"
    assert reader.rest() == b""


@pytest.mark.parametrize("whole", [True, False])
def test_an_event_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    reader = Events()
    assert reader.feed(b"x" * 1000 + b"\n\n") == [b"x" * 1000 + b"\n\n"]
    with pytest.raises(EngineError, match="larger than 100 bytes"):
        for piece in [b"x" * 101] if whole else [b"x"] * 101:
            reader.feed(piece)


def test_data() -> None:
    assert data_of(b"data: {}\n\n") == b"{}"
    assert data_of(b"data:{}\n\n") == b"{}"
    assert data_of(b"event: x\ndata: 1\n\n") == b"1"
    assert data_of(b":\n\n") is None
    assert data_of(b"event: ping\n\n") is None
