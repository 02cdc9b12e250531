import subprocess
import sys

import pytest

from proxy.dialects import contract
from proxy.dialects.assemble import ChatAssembly
from proxy.dialects.contract import EngineError, ReplyTransform, Watch, check_held
from proxy.dialects.pieces import chat_piece
from proxy.dialects.progress import ProgressFilter
from proxy.dialects.reply import EmbedReply, OllamaReply
from proxy.dialects.watch import StreamWatch
from tests.proxy.dialects.support import call_of, fixed_clock

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
RECORD = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'


def test_the_protocols_are_met() -> None:
    whole = call_of("/api/chat", CHAT | {"stream": False})
    made = [ProgressFilter(), ChatAssembly(), OllamaReply(whole, chat_piece, fixed_clock)]
    assert all(isinstance(each, ReplyTransform) for each in made)
    assert isinstance(StreamWatch(), Watch)


def test_dialects_come_without_sockets() -> None:
    found = "{'aiohttp', 'httptools', 'proxy.relay'} & set(sys.modules)"
    code = f"import sys, proxy.dialects; sys.exit(' '.join({found}) or None)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_answer_that_is_held_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "MAX_HELD_BYTES", 10 * len(RECORD))
    check_held(10 * len(RECORD))
    whole = call_of("/api/chat", CHAT | {"stream": False})
    embed = call_of("/api/embed", {"model": "m", "input": "x"})
    made: list[ReplyTransform] = [
        ChatAssembly(), OllamaReply(whole, chat_piece, fixed_clock), EmbedReply(embed, fixed_clock)
    ]  # fmt: skip
    for transform in made:
        for _ in range(10):
            assert transform.feed(RECORD) == b""
        with pytest.raises(EngineError, match="larger than"):
            transform.feed(RECORD)
    streamed = OllamaReply(call_of("/api/chat", CHAT), chat_piece, fixed_clock)
    assert all(streamed.feed(RECORD) for _ in range(100))
