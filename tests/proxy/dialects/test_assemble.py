from typing import Any

import msgspec
import pytest

from proxy.dialects.assemble import assembler, can_assemble
from proxy.dialects.contract import EngineError
from tests.proxy.dialects.support import answered, ask, call_of
from tests.real_engine import RealEngine

MESSAGES = [{"role": "user", "content": 'Count to five. ünïcödé "quoted"\n\ttabbed'}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def tool_talk() -> list[dict[str, Any]]:
    talk: list[dict[str, Any]] = []
    for number, city in enumerate(["Paris", "London", "Berlin", "Madrid"]):
        function = {"name": "get_weather", "arguments": msgspec.json.encode({"city": city}).decode()}
        talk += [
            {"role": "user", "content": f"Weather in {city}?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": f"c{number}", "content": "12 degrees"},
        ]
    return [*talk, {"role": "user", "content": "Weather in Rome?"}]


def shape(value: Any) -> Any:
    """A document with what differs from run to run blanked: ids, times, rates, cached counts. Key order is kept."""
    volatile = ("id", "created", "id_slot", "cached_tokens", "cache_n", "prompt_n")
    if isinstance(value, dict):
        return [
            (key, "~" if key in volatile or key.endswith(("_ms", "_per_second")) else shape(item))
            for key, item in value.items()
        ]
    return [shape(item) for item in value] if isinstance(value, list) else value


def same(engine: RealEngine, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask directly and through a plan, and compare the two; the engine's own is returned."""
    body = {"seed": 1, "temperature": 0} | body
    call = call_of(path, body)
    assert can_assemble(path, call.fields, call.seats)
    ask(engine, path, msgspec.json.encode(body))  # the first computes what the others find cached
    status, direct = ask(engine, path, msgspec.json.encode(body))
    planned_status, planned = answered(engine, path, body)
    assert (status, planned_status) == (200, 200)
    own: dict[str, Any] = msgspec.json.decode(direct)
    assert shape(msgspec.json.decode(planned)) == shape(own)
    return own


@pytest.mark.parametrize("n", [2, 0, -1, True, 1.0, 2.0, "1", [1], 2**32 + 1])
def test_how_many_answers_come_must_be_known(n: Any) -> None:
    for path, body in (("/v1/chat/completions", {"messages": MESSAGES}), ("/completion", {"prompt": "x"})):
        assert can_assemble(path, body | {"n": 1}, 1)
        assert can_assemble(path, body | {"n": None}, 1)
        assert not can_assemble(path, body | {"n": n}, 1)
        assert not can_assemble(path, body | {"n_cmpl": n}, 1)


def test_an_answer_that_goes_on_where_the_client_began_it() -> None:
    path, begun = "/v1/chat/completions", {"role": "assistant", "content": "Bon"}
    assert can_assemble(path, {"messages": [begun, *MESSAGES]}, 1)
    assert not can_assemble(path, {"messages": [*MESSAGES, begun]}, 1)
    for odd in ([], "x", [5], None):
        assert can_assemble(path, {"messages": odd}, 1)


@pytest.mark.parametrize(
    ("path", "record"),
    [
        ("/v1/chat/completions", {"choices": [{"index": 1, "delta": {"content": "x"}}]}),
        ("/v1/completions", {"choices": [{"index": 1, "text": "x"}]}),
        ("/completion", {"index": 1, "content": "x"}),
    ],
)
def test_answers_are_never_mixed(path: str, record: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="several answers"):
        assembler(path).feed(b"data: " + msgspec.json.encode(record) + b"\n\n")


@pytest.mark.real
@pytest.mark.parametrize(
    ("path", "extra"),
    [
        ("/v1/chat/completions", {"messages": [*MESSAGES, {"role": "assistant", "content": "One, "}]}),
        ("/v1/chat/completions", {"messages": MESSAGES, "n": 2.0}),
        ("/v1/chat/completions", {"messages": MESSAGES, "n_cmpl": 2}),
        ("/v1/completions", {"prompt": "x", "n_cmpl": 2}),
        ("/completion", {"prompt": "x", "n": 2.0}),
        ("/v1/responses", {"input": "x", "n": 2}),
    ],
)
def test_what_is_not_assembled_is_the_engines(real_engine: RealEngine, path: str, extra: dict[str, Any]) -> None:
    body = {"seed": 1, "temperature": 0, "max_tokens": 4, "n_predict": 4, "max_output_tokens": 4} | extra
    ask(real_engine, path, msgspec.json.encode(body))
    _, direct = ask(real_engine, path, msgspec.json.encode(body))
    own, ours = msgspec.json.decode(direct), msgspec.json.decode(answered(real_engine, path, body)[1])
    if path != "/v1/responses":
        assert shape(ours) == shape(own)
    answers = own if isinstance(own, list) else own.get("choices", [own])
    assert len(answers) == call_of(path, body).seats


@pytest.mark.real
@pytest.mark.parametrize(
    "extra",
    [
        {"max_tokens": 8},
        {"max_completion_tokens": 5, "stream": False, "n": 1, "user": "me"},
        {"max_tokens": 6, "logprobs": True, "top_logprobs": 2},
        {"max_tokens": 3, "logprobs": True},
        {"max_tokens": 40, "grammar": 'root ::= "yes" | "no"'},
        {"max_tokens": 30, "response_format": {"type": "json_object"}},
        {"max_tokens": 8, "logit_bias": [[57, 5]], "cache_prompt": False, "id_slot": 1},
        {"max_tokens": 8, "temperature": 0.9, "seed": 7, "top_k": 5},
    ],
)
def test_chat(real_engine: RealEngine, extra: dict[str, Any]) -> None:
    same(real_engine, "/v1/chat/completions", {"messages": MESSAGES} | extra)


@pytest.mark.real
def test_chat_that_stops_by_itself(real_engine: RealEngine) -> None:
    own = same(real_engine, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Say hi."}]})
    assert own["choices"][0]["finish_reason"] == "stop"


@pytest.mark.real
@pytest.mark.parametrize("limit", [7, 15, None])
def test_reasoning(thinker: RealEngine, limit: int | None) -> None:
    body: dict[str, Any] = {"messages": MESSAGES, "grammar": 'root ::= "<think>\\nwhy not\\n</think>\\n\\nyes"'}
    own = same(thinker, "/v1/chat/completions", body | ({"max_tokens": limit} if limit else {}))
    assert limit or own["choices"][0]["message"]["reasoning_content"].startswith("why not")


@pytest.mark.real
@pytest.mark.parametrize("limit", [17, 25, 60])
def test_tool_calls(thinker: RealEngine, limit: int) -> None:
    body = {"messages": tool_talk(), "tools": TOOLS, "max_tokens": limit}
    own = same(thinker, "/v1/chat/completions", body)
    assert own["choices"][0]["message"]["tool_calls"]


@pytest.mark.real
@pytest.mark.parametrize("extra", [{"max_tokens": 8}, {"max_tokens": 3, "logprobs": 2}, {"max_tokens": 1}])
def test_completions(real_engine: RealEngine, extra: dict[str, Any]) -> None:
    same(real_engine, "/v1/completions", {"prompt": "Once upon a time"} | extra)


@pytest.mark.real
@pytest.mark.parametrize("path", ["/completion", "/completions"])
@pytest.mark.parametrize("extra", [{}, {"n_probs": 2}, {"samplers": ["top_k"], "top_k": 1}])
def test_completion(real_engine: RealEngine, path: str, extra: dict[str, Any]) -> None:
    own = same(real_engine, path, {"prompt": "Once upon a time", "n_predict": 6} | extra)
    assert own["generation_settings"]["stream"] is False


@pytest.mark.real
def test_the_engines_refusal_is_the_same(real_engine: RealEngine) -> None:
    for body in (
        {"messages": "x"},
        {"messages": MESSAGES, "max_tokens": "many"},
        {"messages": [{"role": "user", "content": "word " * 3000}]},
    ):
        direct = ask(real_engine, "/v1/chat/completions", msgspec.json.encode(body))
        assert answered(real_engine, "/v1/chat/completions", body) == direct
        assert direct[0] == 400
