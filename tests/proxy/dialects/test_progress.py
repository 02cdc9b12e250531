import re
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import plan
from proxy.dialects.progress import ProgressFilter
from tests.proxy.dialects.support import LLAMA, ask, call_of, carried_out, real_facts, through
from tests.real_engine import RealEngine

CHAT = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":null}}],"prompt_progress":{"total":3,"cache":0}}\n\n'
    b'data: {"choices":[{"delta":{"role":"assistant","content":null}}],"prompt_progress":{"total":3,"cache":3}}\n\n'
    b'data: {"choices":[{"delta":{"role":"assistant","content":null}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"\\"prompt_progress\\":{}"}}]}\n\n'
    b"data: [DONE]\n\n"
)
CHAT_PLAIN = b"\n\n".join(CHAT.split(b"\n\n")[2:])
IN_PROGRESS = b'event: response.in_progress\ndata: {"type":"response.in_progress","response":{}'
RESPONSES = (
    b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n'
    + (IN_PROGRESS + b',"prompt_progress":{"total":3}}\n\n')
    + (IN_PROGRESS + b',"prompt_progress":{"total":9}}\n\n')
    + b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"x"}\n\n'
)
RESPONSES_PLAIN = (
    b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n'
    b'event: response.in_progress\ndata: {"type":"response.in_progress","response":{}}\n\n'
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"x"}\n\n'
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.lists(st.integers(min_value=0, max_value=10_000), max_size=12), st.booleans())
def test_any_split_gives_the_same(cuts: list[int], to_end: bool) -> None:
    for sent, plain in ((CHAT, CHAT_PLAIN), (RESPONSES, RESPONSES_PLAIN)):
        assert through(ProgressFilter(to_end=to_end), pieces(sent, cuts)) == plain


def test_passes_through_after_the_first_real_frame() -> None:
    progress = ProgressFilter()
    head = CHAT.index(b'data: {"choices":[{"delta":{"content"')
    before = progress.passthrough
    assert progress.feed(CHAT[:head]) == CHAT_PLAIN[: head - CHAT.index(CHAT_PLAIN)]
    assert (before, progress.passthrough) == (False, True)
    assert progress.feed(b"anything") == b"anything"


def test_comments_errors_and_rubbish_go_through() -> None:
    assert through(ProgressFilter(), [b":\n\n", CHAT]) == b":\n\n" + CHAT_PLAIN
    error = b'data: {"error":{"code":500,"message":"x","type":"server_error"}}\n\n'
    assert through(ProgressFilter(), [error]) == error
    assert through(ProgressFilter(), [b"data: not json\n\nrest"]) == b"data: not json\n\nrest"
    assert through(ProgressFilter(), [b"data: {"]) == b"data: {"


def test_progress_between_outputs_is_dropped_to_the_end() -> None:
    late = CHAT_PLAIN.replace(b"data: [DONE]", CHAT.split(b"\n\n", 1)[0] + b"\n\ndata: [DONE]")
    progress = ProgressFilter(to_end=True)
    assert progress.feed(late) == CHAT_PLAIN
    assert not progress.passthrough


def blank(stream: bytes) -> bytes:
    """A stream without ids, times and cached counts."""
    stream = re.sub(rb'"timings":\{[^}]*\}', b'"timings":{}', stream)
    stream = re.sub(rb'"(created|created_at|cached_tokens|id_slot|cache_read_input_tokens)":-?\d+', rb'"\1":0', stream)
    return re.sub(rb'"(id|item_id)":"[^"]*"', rb'"\1":""', stream)


MESSAGES = [{"role": "user", "content": "Tell me about the sea. " * 12}]


@pytest.mark.real
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 6}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "stream_options": {"include_usage": True}}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "timings_per_token": True}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "logprobs": True, "top_logprobs": 1}),
        ("/v1/completions", {"prompt": "The sea is deep. " * 16, "max_tokens": 6}),
        ("/completion", {"prompt": "The sea is wide. " * 16, "n_predict": 6}),
        ("/completions", {"prompt": "The sea is wide. " * 16, "n_predict": 6}),
        ("/v1/responses", {"input": "Tell me about the sea. " * 12, "max_output_tokens": 6}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 6}),
    ],
)
def test_the_client_sees_what_the_engine_sends_without(
    real_engine: RealEngine, path: str, body: dict[str, Any]
) -> None:
    body = {"seed": 1, "temperature": 0, "stream": True} | body
    made = plan(call_of(path, body), LLAMA, real_facts(real_engine))
    assert (b'"return_progress":true' in made.outgoing.body) == (path != "/v1/messages")
    status, planned = carried_out(real_engine, made)
    plain_status, plain = ask(real_engine, path, msgspec.json.encode(body))
    assert status == plain_status == 200
    assert b"prompt_progress" not in planned
    if path == "/v1/messages":  # what was cached is not counted as input there
        plain, planned = (re.sub(rb'"input_tokens":\d+', b"", stream) for stream in (plain, planned))
    assert blank(planned) == blank(plain)


@pytest.mark.real
def test_several_choices_in_one_stream(real_engine: RealEngine) -> None:
    body = {"messages": MESSAGES, "max_tokens": 3, "stream": True, "n": 2, "seed": 1, "temperature": 0}
    made = plan(call_of("/v1/chat/completions", body), LLAMA, real_facts(real_engine))
    status, planned = carried_out(real_engine, made)
    assert status == 200
    assert b"prompt_progress" not in planned
    assert planned.count(b'"finish_reason":"length"') == 2


@pytest.mark.real
def test_the_engine_really_sends_progress(real_engine: RealEngine) -> None:
    body = {"messages": [{"role": "user", "content": "unseen " * 20}], "max_tokens": 1, "stream": True}
    made = plan(call_of("/v1/chat/completions", body), LLAMA, real_facts(real_engine))
    assert b"prompt_progress" in ask(real_engine, made.outgoing.path, made.outgoing.body)[1]


@pytest.mark.real
def test_a_client_that_asks_for_progress_gets_it(real_engine: RealEngine) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1, "stream": True, "return_progress": True}
    made = plan(call_of("/v1/chat/completions", body), LLAMA, real_facts(real_engine))
    assert made.transform is None
    assert made.outgoing.body == msgspec.json.encode(body)
    assert b"prompt_progress" in carried_out(real_engine, made)[1]
