from hypothesis import given
from hypothesis import strategies as st

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


def test_data() -> None:
    assert data_of(b"data: {}\n\n") == b"{}"
    assert data_of(b"data:{}\n\n") == b"{}"
    assert data_of(b"event: x\ndata: 1\n\n") == b"1"
    assert data_of(b":\n\n") is None
    assert data_of(b"event: ping\n\n") is None
