import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.contract import EngineError, TruncatedReply
from proxy.dialects.pieces import chat_piece, completion_piece
from proxy.dialects.reply import EmbedReply, OllamaReply
from tests.proxy.dialects.support import NOW_NS, answered, call_of, captured, fixed_clock, through
from tests.proxy.dialects.test_progress import pieces
from tests.real_engine import RealEngine

TIMINGS = '"timings":{"cache_n":24,"prompt_n":12,"prompt_ms":78.332,"predicted_n":3,"predicted_ms":37.9071}'


def event(text: str) -> bytes:
    return f"data: {text}\n\n".encode()


def delta(fields: str, extra: str = "") -> bytes:
    return event(f'{{"choices":[{{"finish_reason":null,"index":0,"delta":{{{fields}}}{extra}}}],"id":"x"}}')


def last(reason: str = "length") -> bytes:
    return (
        event(f'{{"choices":[{{"finish_reason":"{reason}","index":0,"delta":{{}}}}],{TIMINGS}}}') + b"data: [DONE]\n\n"
    )


STREAM = [
    event('{"choices":[{"delta":{"role":"assistant","content":null}}],"prompt_progress":{"total":3}}'),
    b":\n\n",
    delta('"role":"assistant","content":null'),
    delta('"reasoning_content":"hm"'),
    delta('"content":"The <b>"'),
    delta('"content":" é"'),
    last(),
]


def reply(path: str = "/api/chat", **body: Any) -> OllamaReply:
    given_body = {"messages": [{"role": "user", "content": "x"}]} if path == "/api/chat" else {"prompt": "x"}
    call = call_of(path, {"model": "smol"} | given_body | body)
    call.arrived_ns -= 5_000_000
    return OllamaReply(call, chat_piece, fixed_clock)


def records(data: bytes) -> list[dict[str, Any]]:
    assert data.endswith(b"\n")
    assert b"\n\n" not in data
    return [msgspec.json.decode(line) for line in data.splitlines()]


def test_streamed_chat() -> None:
    out = through(reply(), STREAM)
    head = '{"model":"smol","created_at":"2026-11-29T19:13:36.284853331Z","message":{"role":"assistant",'
    assert out.decode().splitlines() == [
        head + '"content":"","thinking":"hm"},"done":false}',
        head + '"content":"The \\u003cb\\u003e"},"done":false}',
        head + '"content":" é"},"done":false}',
        head + '"content":""},"done":true,"done_reason":"length","total_duration":5000000,"load_duration":5000000,'
        '"prompt_eval_count":36,"prompt_eval_duration":78332000,"eval_count":3,"eval_duration":37907000}',
    ]
    assert reply().head(200, []) == [("Content-Type", "application/x-ndjson")]


def test_whole_chat_and_generate() -> None:
    (record,) = records(through(reply(stream=False), STREAM) + b"\n")
    assert record["message"] == {"role": "assistant", "content": "The <b> é", "thinking": "hm"}
    assert list(record) == list(msgspec.json.decode(captured("ollama/031").answer))
    (record,) = records(through(reply("/api/generate", stream=False), STREAM) + b"\n")
    assert (record["response"], record["thinking"]) == ("The <b> é", "hm")
    wanted = list(msgspec.json.decode(captured("ollama/021").answer))
    wanted.remove("context")  # documented: token numbers of another engine would be of no use
    assert [key for key in record if key != "thinking"] == wanted
    assert reply(stream=False).head(200, []) == [("Content-Type", "application/json; charset=utf-8")]


def test_think_false_keeps_thoughts_to_itself() -> None:
    assert b"hm" not in through(reply(think=False), STREAM)
    assert b"hm" not in through(reply(think=False, stream=False), STREAM)


@given(st.lists(st.integers(min_value=0, max_value=10_000), max_size=12), st.booleans())
def test_any_split_gives_the_same(cuts: list[int], stream: bool) -> None:
    assert through(reply(stream=stream), pieces(b"".join(STREAM), cuts)) == through(reply(stream=stream), STREAM)


TOOLS = [
    delta('"role":"assistant","content":null'),
    delta('"content":"Let me see. "'),
    delta('"tool_calls":[{"index":0,"id":"a1","type":"function","function":{"name":"get_weather","arguments":"{"}}]'),
    delta('"tool_calls":[{"index":0,"function":{"arguments":"\\"city\\": \\"Rome\\"}"}}]'),
    delta('"tool_calls":[{"index":1,"id":"a2","type":"function","function":{"name":"now","arguments":""}}]'),
]


def test_a_whole_answer_comes_at_the_end_of_the_engines() -> None:
    transform = reply(stream=False)
    assert [transform.feed(piece) for piece in STREAM] == [b""] * len(STREAM)
    assert msgspec.json.decode(transform.finish())["done"] is True


def test_tool_calls_come_whole() -> None:
    first, call_0, call_1, end = records(through(reply(), [*TOOLS, last("tool_calls")]))
    assert first["message"] == {"role": "assistant", "content": "Let me see. "}
    assert call_0["message"] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "a1", "function": {"index": 0, "name": "get_weather", "arguments": {"city": "Rome"}}}],
    }
    assert call_1["message"]["tool_calls"][0]["function"] == {"index": 1, "name": "now", "arguments": {}}
    assert (end["done"], end["done_reason"]) == (True, "stop")
    example = msgspec.json.decode(captured("ollama/152").answer.splitlines()[0])["message"]["tool_calls"][0]
    ours = call_0["message"]["tool_calls"][0]
    assert (list(ours), list(ours["function"])) == (list(example), list(example["function"]))
    (whole,) = records(through(reply(stream=False), [*TOOLS, last("tool_calls")]) + b"\n")
    assert [item["id"] for item in whole["message"]["tool_calls"]] == ["a1", "a2"]
    assert list(whole) == list(msgspec.json.decode(captured("ollama/151").answer))


def test_a_call_cut_off_by_the_limit_comes_as_text() -> None:
    text = '{"name": "get_weather", "arguments": {'
    assert records(through(reply(), [*TOOLS[:3], last()]))[1]["message"]["content"] == text
    (whole,) = records(through(reply(stream=False), [*TOOLS[:3], last()]) + b"\n")
    assert whole["message"] == {"role": "assistant", "content": "Let me see. " + text}


def test_logprobs() -> None:
    top = '"id":57,"token":"I","bytes":[73],"logprob":-1.5'
    item = f'{{{top},"top_logprobs":[{{{top}}}]}}'
    stream = [delta('"content":"I"', f',"logprobs":{{"content":[{item}]}}'), last()]
    (whole,) = records(through(reply(stream=False, logprobs=True, top_logprobs=1), stream) + b"\n")
    example = msgspec.json.decode(captured("ollama/039").answer)
    assert list(whole) == list(example)
    kept = {"token": "I", "logprob": -1.5, "bytes": [73]}
    assert whole["logprobs"] == [kept | {"top_logprobs": [kept]}]
    assert list(whole["logprobs"][0]) == list(example["logprobs"][0])
    assert records(through(reply(logprobs=True), stream))[0]["logprobs"] == [kept]


def test_raw_generate_reads_native_records() -> None:
    call = call_of("/api/generate", {"model": "smol", "prompt": "x", "raw": True, "stream": False})
    stream = [
        event('{"index":0,"content":"a","stop":false,"prompt_progress":{"total":1}}').replace(b'"a"', b'""'),
        event('{"index":0,"content":"a b","stop":false}'),
        event('{"index":0,"content":"","stop":true,"stop_type":"eos",' + TIMINGS + "}"),
    ]
    (record,) = records(through(OllamaReply(call, completion_piece, fixed_clock), stream) + b"\n")
    assert (record["response"], record["done_reason"]) == ("a b", "stop")


def test_an_end_without_last_record_is_no_end() -> None:
    for stream in (True, False):
        transform = reply(stream=stream)
        for chunk in STREAM[:-1]:
            transform.feed(chunk)
        with pytest.raises(TruncatedReply):
            transform.finish()


def test_errors_inside_the_stream() -> None:
    with pytest.raises(EngineError, match="Context size has been exceeded"):
        reply().feed(event('{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}'))
    with pytest.raises(EngineError, match="unreadable record"):
        reply().feed(event("what"))


VECTORS = (
    b'{"model":"m","object":"list","usage":{"prompt_tokens":3,"total_tokens":3},"data":['
    b'{"embedding":[0.8,0.4],"index":1,"object":"embedding"},'
    b'{"embedding":[0.6000000238418579,0.8,0.5],"index":0}]}'
)


def test_embeddings() -> None:
    call = call_of("/api/embed", {"model": "embed", "input": ["a", "b"]})
    call.arrived_ns = NOW_NS - 1000
    out = through(EmbedReply(call, fixed_clock), [VECTORS[:50], VECTORS[50:]])
    assert b"[[0.6000000238418579,0.8,0.5],[0.8,0.4]]" in out
    assert list(msgspec.json.decode(out)) == [
        "model",
        "embeddings",
        "total_duration",
        "load_duration",
        "prompt_eval_count",
    ]
    old = call_of("/api/embeddings", {"model": "embed", "prompt": "a"})
    assert through(EmbedReply(old, fixed_clock), [VECTORS]) == b'{"embedding":[0.6000000238418579,0.8,0.5]}'
    assert through(EmbedReply(old, fixed_clock), [b'{"data":[{"embedding":[1]}],"usage":null}']) == b'{"embedding":[1]}'
    short = call_of("/api/embed", {"model": "embed", "input": ["a", "b"], "dimensions": 2})
    vectors = msgspec.json.decode(through(EmbedReply(short, fixed_clock), [VECTORS]))["embeddings"]
    assert vectors[0] == pytest.approx([0.6, 0.8])
    assert vectors[1] == [0.8, 0.4]
    with pytest.raises(TruncatedReply):
        through(EmbedReply(call, fixed_clock), [VECTORS[:50]])


SEA = [{"role": "user", "content": "Tell me about the sea."}]
FIXED = {"seed": 1, "temperature": 0, "num_predict": 6}


@pytest.mark.real
@pytest.mark.parametrize("stream", [True, False])
def test_real_chat(real_engine: RealEngine, stream: bool) -> None:
    body = {"model": "smol", "messages": SEA, "options": FIXED, "stream": stream}
    status, out = answered(real_engine, "/api/chat", body)
    assert status == 200
    *_, end = records(out if stream else out + b"\n")
    name = "030" if stream else "031"
    example = msgspec.json.decode(captured(f"ollama/{name}").answer.splitlines()[-1])
    assert list(end) == list(example)
    assert (end["done_reason"], end["eval_count"], end["model"]) == ("length", 6, "smol")
    assert end["prompt_eval_count"] > 6
    assert all(type(end[key]) is type(example[key]) for key in example)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}Z", end["created_at"])


@pytest.mark.real
def test_real_streams_and_whole_answers_agree(real_engine: RealEngine) -> None:
    for path, given_body in (
        ("/api/chat", {"messages": SEA}),
        ("/api/generate", {"prompt": "Tell me about the sea.", "system": "Be brief."}),
        ("/api/generate", {"prompt": "Once upon a", "raw": True}),
    ):
        body = {"model": "smol", "options": FIXED} | given_body
        _, whole = answered(real_engine, path, body | {"stream": False})
        _, stream = answered(real_engine, path, body)
        one: dict[str, Any] = msgspec.json.decode(whole)
        many = records(stream)
        texts = [record.get("response", record.get("message", {}).get("content")) for record in many]
        assert "".join(texts) == one.get("response", one.get("message", {}).get("content")) != ""
        assert many[-1]["eval_count"] == one["eval_count"] == 6


@pytest.mark.real
def test_real_options(real_engine: RealEngine) -> None:
    def ask(**body: Any) -> dict[str, Any]:
        base = {"model": "smol", "prompt": "Count: one two", "stream": False, "raw": True}
        status, out = answered(real_engine, "/api/generate", base | body)
        assert status == 200, out
        answer: dict[str, Any] = msgspec.json.decode(out)
        return answer

    stopped = ask(options={"temperature": 0, "num_predict": 30, "stop": ["three"]})
    assert "three" not in stopped["response"]
    assert stopped["done_reason"] == "stop"
    everything = {
        "num_predict": 3, "num_keep": 2, "num_ctx": 512, "top_k": 10, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.9,
        "seed": 3, "temperature": 0.5, "repeat_penalty": 1.1, "repeat_last_n": 32, "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "mirostat": 1, "mirostat_tau": 4.0, "mirostat_eta": 0.2, "stop": "\n\n\n", "frobnicate": 1, "num_gpu": 1,
    }  # fmt: skip
    assert ask(options=everything)["eval_count"] <= 3
    assert ask(options={"num_predict": 2}, raw=False, format="json")["eval_count"] == 2


@pytest.mark.real
def test_real_format(real_engine: RealEngine) -> None:
    properties = {"n": {"enum": [1, 2, 3]}}
    schema = {"type": "object", "properties": properties, "required": ["n"], "additionalProperties": False}
    for path, given_body in (
        ("/api/chat", {"messages": SEA}),
        ("/api/generate", {"prompt": "A number"}),
        ("/api/generate", {"prompt": "A number", "raw": True}),
    ):
        body = {"model": "smol", "stream": False, "format": schema, "options": FIXED | {"num_predict": 120}}
        status, out = answered(real_engine, path, body | given_body)
        answer = msgspec.json.decode(out)
        text = answer["message"]["content"] if path == "/api/chat" else answer["response"]
        assert status == 200
        assert msgspec.json.decode(text)["n"] in (1, 2, 3), text


@pytest.mark.real
def test_real_logprobs(real_engine: RealEngine) -> None:
    for path, given_body in (
        ("/api/chat", {"messages": SEA}),
        ("/api/generate", {"prompt": "A"}),
        ("/api/generate", {"prompt": "A", "raw": True}),
    ):
        body = {"model": "smol", "stream": False, "logprobs": True, "top_logprobs": 2, "options": FIXED}
        status, out = answered(real_engine, path, body | given_body)
        logprobs = msgspec.json.decode(out)["logprobs"]
        assert status == 200
        assert len(logprobs) == 6
        assert list(logprobs[0]) == ["token", "logprob", "bytes", "top_logprobs"]
        assert len(logprobs[0]["top_logprobs"]) == 2


@pytest.mark.real
@pytest.mark.parametrize("stream", [True, False])
def test_real_tools(thinker: RealEngine, stream: bool) -> None:
    messages: list[dict[str, Any]] = []
    for city in ("Paris", "London", "Berlin", "Madrid"):
        messages += [
            {"role": "user", "content": f"Weather in {city}?"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": city}}}]},
            {"role": "tool", "content": "12 degrees", "tool_name": "get_weather"},
        ]
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "get_weather", "description": "Weather of a city", "parameters": parameters}
    body = {
        "model": "smol",
        "messages": [*messages, {"role": "user", "content": "Weather in Rome?"}],
        "tools": [{"type": "function", "function": function}],
        "stream": stream,
        "options": FIXED | {"num_predict": 60},
    }
    status, out = answered(thinker, "/api/chat", body)
    assert status == 200, out
    (record,) = (one for one in records(out if stream else out + b"\n") if "tool_calls" in one["message"])
    assert record["message"]["tool_calls"][0]["function"] == {
        "index": 0,
        "name": "get_weather",
        "arguments": {"city": "Rome"},
    }


@pytest.mark.real
def test_real_thinking(thinker: RealEngine) -> None:
    body = {"model": "smol", "messages": SEA, "stream": False, "options": FIXED}
    for think in (True, False, "high", None):
        status, out = answered(thinker, "/api/chat", body | {"think": think})
        assert status == 200, out
        assert msgspec.json.decode(out)["eval_count"] == 6


@pytest.mark.real
def test_real_errors(real_engine: RealEngine) -> None:
    status, out = answered(real_engine, "/api/embed", {"model": "smol", "input": "hi"})
    assert (status, out) == (captured("ollama/040").status, captured("ollama/040").answer)
    status, out = answered(real_engine, "/api/embeddings", {"model": "smol", "prompt": "hi"})
    assert (status, out) == (captured("ollama/042").status, captured("ollama/042").answer)
    body = {"model": "smol", "prompt": "def f(", "suffix": "return x", "stream": False, "options": {"num_predict": 4}}
    status, out = answered(real_engine, "/api/generate", body)
    assert (status, out) == (captured("ollama/158").status, captured("ollama/158").answer)
    long = {"model": "smol", "messages": [{"role": "user", "content": "word " * 3000}]}
    status, out = answered(real_engine, "/api/chat", long)
    example = captured("ollama/062")
    numbers = re.compile(rb"\d\d+")
    assert (status, numbers.sub(b"N", out)) == (example.status, numbers.sub(b"N", example.answer))
