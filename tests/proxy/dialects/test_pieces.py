import msgspec
import pytest

from proxy.dialects.pieces import Piece, Timings, ToolDelta, chat_piece, completion_piece
from tests.proxy.dialects.support import captured
from tests.proxy.dialects.test_watch import sse


def test_a_captured_chat() -> None:
    events = sse(captured("llama-server/022").answer.replace(b"1e0\n", b"")).split(b"\n\n")
    found = [chat_piece(event + b"\n\n") for event in events if event.startswith(b"data:")]
    assert found[0] == Piece()
    assert [piece.content for piece in found[1:4] if piece] == ["1", ".", " "]
    assert found[4] == Piece(finish="length", timings=Timings(35, 1, 5.384, 3, 10.361))
    assert found[5] is None


def test_a_captured_completion() -> None:
    events = sse(captured("llama-server/031").answer).split(b"\n\n")[:-1]
    found = [completion_piece(event + b"\n\n") for event in events]
    assert "".join(piece.content for piece in found if piece) == ", the city of New Haven was a"
    assert found[-1] == Piece(finish="length", timings=Timings(3, 1, 5.303, 8, 34.421))


def test_tool_calls_and_reasons() -> None:
    function = '"function":{"name":"f","arguments":"{"}'
    piece = chat_piece(
        f'data: {{"choices":[{{"delta":{{"tool_calls":[{{"index":1,"id":"a",{function}}}]}}}}]}}\n\n'.encode()
    )
    assert piece == Piece(tools=[ToolDelta(1, "a", "f", "{")])
    for reason, shown in (("stop", "stop"), ("tool_calls", "stop"), ("length", "length")):
        piece = chat_piece(f'data: {{"choices":[{{"delta":{{}},"finish_reason":"{reason}"}}]}}\n\n'.encode())
        assert piece is not None
        assert piece.finish == shown


def test_what_adds_nothing() -> None:
    for read in (chat_piece, completion_piece):
        assert read(b":\n\n") is None
        assert read(b"data: [DONE]\n\n") is None
        assert read(b'data: {"error":{"code":500,"message":"x"}}\n\n') == Piece(error="x")
        assert read(b'data: {"error":{}}\n\n') == Piece(error="unknown error")
        with pytest.raises(msgspec.DecodeError):
            read(b"data: nonsense\n\n")
    assert chat_piece(b'data: {"choices":[],"usage":{}}\n\n') is None
