from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import watch as marks
from proxy.dialects.watch import KEEP_BYTES, StreamWatch, Usage
from tests.proxy.dialects.support import captured
from tests.proxy.dialects.test_progress import pieces

Ended = Callable[[bytes], bool]
TIMED = Usage(prompt_tokens=36, cached_tokens=35, output_tokens=8, prompt_ms=5.322, output_ms=36.392)


def sse(stream: bytes) -> bytes:
    """A captured stream with the blank lines that the capture left out."""
    events: list[list[bytes]] = []
    for line in stream.split(b"\n"):
        if line.startswith(b"event:") or (line.startswith(b"data:") and not (events and len(events[-1]) == 1)):
            events.append([line])
        elif line:
            events[-1].append(line)
    if any(line.startswith(b"event:") for line in stream.split(b"\n")):
        return b"".join(b"\n".join(event) + b"\n\n" for event in events)
    return b"".join(line + b"\n\n" for line in stream.split(b"\n") if line)


def watched(data: bytes, ended: Ended | None = None) -> StreamWatch:
    watch = StreamWatch(ended)
    watch.see(data)
    return watch


COMPLETE = [
    ("ollama/030", marks.ndjson_ended, False, Usage(15, None, 12, 56.518, 17950.025, load_ms=0.79041)),
    ("ollama/020", marks.ndjson_ended, False, Usage(13, None, 12, 104.829, 6890.699, load_ms=6339.402297)),
    ("llama-server/021", marks.done_ended, True, TIMED),
    ("llama-server/031", marks.completion_ended, True, Usage(4, 3, 8, 5.303, 34.421, 0)),
    ("llama-server/042", marks.messages_ended, True, Usage(36, 35, 8)),
    ("ollama/074", marks.done_ended, True, Usage(15, None, 8)),
    ("ollama/080", marks.responses_ended, True, Usage(10, 0, 8)),
    ("ollama/082", marks.messages_ended, True, Usage(15, None, 8)),
    ("ollama/152", marks.ndjson_ended, False, Usage(129, None, 28, 7.487, 143.061, load_ms=0.905542)),
    ("ollama/161", marks.messages_ended, True, Usage(129, None, 28)),
]


@pytest.mark.parametrize(("name", "ended", "events", "usage"), COMPLETE)
@given(cuts=st.lists(st.integers(0, 9999), max_size=30))
def test_captured_streams(name: str, ended: Ended, events: bool, usage: Usage, cuts: list[int]) -> None:
    answer = captured(name).answer
    data = sse(answer) if events else answer + b"\n"
    watch = StreamWatch(ended)
    for piece in pieces(data, cuts):
        watch.see(piece)
    assert watch.complete()
    assert not watch.midline
    assert watch.usage == usage
    assert watch.error is None


@pytest.mark.parametrize(("name", "ended", "events", "usage"), COMPLETE)
def test_cut_streams_are_not_complete(name: str, ended: Ended, events: bool, usage: Usage) -> None:
    answer = captured(name).answer
    data = sse(answer) if events else answer + b"\n"
    end = len(data.rstrip())
    for cut in range(0, end, 7):
        assert not watched(data[:cut], ended).complete(), (cut, usage)


@pytest.mark.parametrize(
    ("name", "ended"),
    [("ollama/113", marks.ndjson_ended), ("ollama/116", marks.done_ended), ("ollama/117", marks.messages_ended),
     ("ollama/118", marks.responses_ended)],
)  # fmt: skip
def test_streams_of_killed_engines_are_not_complete(name: str, ended: Ended) -> None:
    answer = captured(name).answer
    data = answer + b"\n" if name == "ollama/113" else sse(answer)
    watch = watched(data, ended)
    assert not watch.complete()
    if name == "ollama/113":
        assert watch.error == "an error was encountered while running the model: unexpected EOF"


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("llama-server/020", Usage(36, 0, 8, 78.332, 37.907)),
        ("llama-server/030", Usage(4, 0, 8, 13.454, 39.626, 0)),
        ("llama-server/032", Usage(1, 0, 8, 5.184, 34.256)),
        ("llama-server/040", Usage(31, 24, 8)),
        ("llama-server/041", Usage(36, 24, 8)),
        ("ollama/031", Usage(15, None, 12, 15.296, 158.278, load_ms=3.213856)),
        ("ollama/073", Usage(15, None, 8)),
        ("ollama/079", Usage(10, 0, 8)),
        ("ollama/081", Usage(15, None, 8)),
        ("ollama/140", Usage(1, None, None, load_ms=277.681833)),
        ("ollama/147", Usage(2, None, None)),
        ("ollama/052", Usage()),
    ],
)
def test_whole_answers(name: str, usage: Usage) -> None:
    watch = watched(captured(name).answer)
    assert watch.complete()
    assert watch.usage == usage


def test_text_of_the_model_is_no_mark() -> None:
    said = (
        b'data: {"content":"\\"stop\\":true \\n\\ndata: [DONE] \\"timings\\":{\\"prompt_n\\":5} \\"done\\":true"}\n\n'
    )
    for ended in (marks.done_ended, marks.completion_ended, marks.ndjson_ended, marks.responses_ended):
        assert not watched(said, ended).complete()
    assert watched(said).usage == Usage()


def test_records_longer_than_what_is_kept() -> None:
    long = b"7," * KEEP_BYTES
    last = captured("ollama/020").answer.splitlines()[-1]
    watch = StreamWatch(marks.ndjson_ended)
    for piece in pieces(last.replace(b'"context":[', b'"context":[' + long) + b"\n", list(range(0, 20000, 999))):
        watch.see(piece)
    assert watch.complete()
    assert watch.usage.output_tokens == 12
    record = sse(captured("llama-server/031").answer).replace(b'"prompt":"Once', b'"prompt":"' + long + b"Once")
    watch = watched(record, marks.completion_ended)
    assert watch.complete()
    assert watch.usage.cached_tokens == 3
    done = b'event: response.completed\ndata: {"type":"response.completed","response":{"output":"%s",'
    done += b'"usage":{"input_tokens":3,"output_tokens":1,"input_tokens_details":{"cached_tokens":2}}},'
    done += b'"timings":{"cache_n":2,"prompt_n":1}}\n\n'
    assert watched(done % long, marks.responses_ended).complete()


def test_memory_is_bounded() -> None:
    watch = StreamWatch(marks.done_ended)
    for _ in range(1000):
        watch.see(b"x" * 1000)
    assert sum(len(chunk) for chunk in watch._chunks) <= 2 * KEEP_BYTES + 1000


def test_errors_inside_streams() -> None:
    assert watched(b'data: {"error":{"code":500,"message":"Context size has been exceeded."}}\n\n').error == (
        "Context size has been exceeded."
    )
    assert watched(b'{"error":"x"}\n').error == "x"
    assert watched(b'{"message":{"content":"the \\"error\\":"}}\n').error is None
    assert watched(b'{"error":').error is None
    assert watched(b'data: {"error":null}\n\n').error is None
    assert watched(b"").error is None


def test_midline() -> None:
    assert watched(b'{"a":1').midline
    assert not watched(b'{"a":1}\n').midline
    assert not StreamWatch().midline


@pytest.mark.parametrize(
    ("seen", "midline"),
    [(b"", False), (b"data: {}\n\n", False), (b"event: x\n", True), (b"data: {}", True), (b": queued\n\nda", True)],
)
def test_midline_of_events(seen: bytes, midline: bool) -> None:
    watch = StreamWatch(record_end=b"\n\n")
    watch.see(seen)
    assert watch.midline is midline


@pytest.mark.parametrize(
    "record",
    [b'{"created_at":"%d","message":{"role":"assistant","content":" na"},"done":false}\n',
     b'{"created_at":"%d","response":"\\"","done":false}\n',
     b'data: {"id":"%d","choices":[{"delta":{"content":" na"}}]}\n\n',
     b'event: response.output_text.delta\ndata: {"delta":" na","sequence_number":%d}\n\n'],
)  # fmt: skip
def test_a_model_that_repeats_itself(record: bytes) -> None:
    first = record.replace(b" na", b"Once").replace(b'\\"', b"Once") % 0
    assert not watched(first + b"".join(record % number for number in range(29))).repeated
    assert watched(first + b"".join(record % number for number in range(30))).repeated
    assert not watched(b"".join(record % number for number in range(30)) + first).repeated
    assert not watched(b"").repeated
