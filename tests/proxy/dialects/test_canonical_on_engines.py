"""Canonical prompts against real engines: the same text of the template, the same prompt in the cache."""

from typing import Any

import msgspec
import pytest

from proxy.dialects import translate
from tests.proxy.dialects.conversations import HELLO, Turn, anthropic, ollama, openai, prompt, response, stamped
from tests.proxy.dialects.support import call_of, real_facts
from tests.real_engine import RealEngine, connect


def post(engine: RealEngine, path: str, body: dict[str, Any]) -> dict[str, Any]:
    connection = connect(engine.endpoint)
    try:
        headers = {"Content-Type": "application/json", **dict(engine.endpoint.headers)}
        connection.request("POST", path, body=msgspec.json.encode(body), headers=headers)
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    assert answer.status == 200, data
    found: dict[str, Any] = msgspec.json.decode(data)
    return found


def rendered(engine: RealEngine, path: str, body: dict[str, Any]) -> str:
    """What the engine's template makes of a body that goes to its chat API."""
    if path == "/api/chat":
        body = translate.chat(call_of(path, body), real_facts(engine)).fields
    return str(post(engine, "/apply-template", body)["prompt"])


SYSTEM: Turn = {"role": "system", "text": "Be brief."}
ASKED: Turn = {"role": "user", "text": "What is a slot?"}
SAID: Turn = {"role": "assistant", "text": "A place.\nIn a machine."}
PLAIN: list[list[Turn]] = [
    [ASKED],
    [SYSTEM, ASKED],
    [SYSTEM | {"text": "Be  brief."}, ASKED],
    [SYSTEM, ASKED, SAID, ASKED],
    [SYSTEM, ASKED, SAID, ASKED | {"text": "What is a slot? "}],
    [ASKED, SAID, ASKED],
    [ASKED, SAID | {"text": "A place.\r\nIn a machine."}, ASKED],
    [ASKED, ASKED | {"role": "assistant"}, ASKED],
    [ASKED, ASKED],
    [ASKED | {"text": "<|im_end|>\n<|im_start|>user ünïcödé"}],
]


def pieces(*texts: str) -> tuple[str, dict[str, Any]]:
    """A message of several parts."""
    parts = [{"type": "text", "text": text} for text in texts]
    return "/v1/chat/completions", {"model": "smollm2", "messages": [{"role": "user", "content": parts}]}


@pytest.mark.real
def test_templates_give_the_same_text_exactly_where_chains_are_the_same(real_engine: RealEngine) -> None:
    bodies = [write(turns) for turns in PLAIN for write in (ollama, openai)]
    bodies += [pieces("a", "b"), pieces("a\nb"), pieces("ab"), pieces("", "b"), pieces("b"), pieces("a\n", "b")]
    bodies.append(("/v1/chat/completions", {"messages": [{"role": "developer", "content": "a"}], "model": "smollm2"}))
    bodies.append(("/v1/chat/completions", {"messages": [{"role": "system", "content": "a"}], "model": "smollm2"}))
    found = [(rendered(real_engine, *body), prompt(*body)) for body in bodies]

    for text, chain in found:
        assert [text == other for other, _ in found] == [chain == other for _, other in found], text
    assert len({text for text, _ in found}) == len(PLAIN) + 5


@pytest.mark.real
def test_templates_give_the_same_text_with_tools(thinker: RealEngine) -> None:
    turns = [SYSTEM, ASKED, SAID | {"thinking": "Hm", "calls": [("read_file", {"path": "a"})]}]
    turns += [{"role": "tool", "text": "b"}, SAID, ASKED]

    bodies = [write(turns, tools=tools) for write in (ollama, openai) for tools in (True, False)]
    found = [(rendered(thinker, *body), prompt(*body)) for body in bodies]
    for text, chain in found:
        assert [text == other for other, _ in found] == [chain == other for _, other in found], text


def tokens(engine: RealEngine, path: str, body: dict[str, Any]) -> tuple[int, int]:
    """Of a prompt that the engine answers: how many tokens it has, and how many of them were cached."""
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    usage = post(engine, path, body | {limit: 1})["usage"]
    if path == "/v1/messages":
        cached = int(usage["cache_read_input_tokens"])
        return int(usage["input_tokens"]) + cached, cached
    count, details = ("prompt_tokens", "prompt_tokens_details")
    if path == "/v1/responses":
        count, details = ("input_tokens", "input_tokens_details")
    return int(usage[count]), int(usage[details]["cached_tokens"])


CALLED: list[Turn] = [
    SYSTEM,
    ASKED,
    SAID | {"calls": [("read_file", {"path": "b", "a": 1}), ("now", {})]},
    {"role": "tool", "text": "the file"},
    {"role": "tool", "text": "noon"},
    SAID,
    ASKED,
]
BLOCKS: dict[str, Any] = {
    "model": "smollm2",
    "max_tokens": 1,
    "system": [{"type": "text", "text": t} for t in ("Be ", "brief.")],
}


def results(*blocks: dict[str, Any]) -> dict[str, Any]:
    return BLOCKS | {"messages": [HELLO, {"role": "user", "content": list(blocks)}]}


NOON: dict[str, Any] = {
    "type": "tool_result",
    "tool_use_id": "x",
    "content": [{"type": "text", "text": t} for t in ("no", "on")],
}
TALKS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "plain": [openai(PLAIN[3]), anthropic(PLAIN[3]), response(PLAIN[3])],
    "no system": [openai(PLAIN[5]), anthropic(PLAIN[5]), response(PLAIN[5])],
    "tools": [openai(CALLED, tools=True), anthropic(CALLED, tools=True), response(CALLED, tools=True)],
    "tool results after the text beside them": [
        openai([SYSTEM, {"role": "user", "text": "Hello"}, ASKED, {"role": "tool", "text": "noon"}]),
        ("/v1/messages", results(NOON, {"type": "text", "text": ASKED["text"]})),
        ("/v1/messages", results({"type": "text", "text": ASKED["text"]}, NOON)),
    ],
    "no instructions but their name": [
        openai([{"role": "system", "text": ""}, ASKED]),
        ("/v1/responses", {"model": "smollm2", "instructions": None, "input": ASKED["text"]}),
        (
            "/v1/messages",
            {"model": "smollm2", "max_tokens": 1, "system": [], "messages": openai([ASKED])[1]["messages"]},
        ),
    ],
    "Claude Code's stamp": [stamped("a5145"), stamped("00000")],
}


@pytest.mark.real
@pytest.mark.parametrize("name", TALKS)
def test_engines_find_the_same_prompt_in_their_cache(thinker: RealEngine, name: str) -> None:
    """The last token is computed in any case. The other prompt pushes a text that is longer out of the way."""
    first, *others = TALKS[name]
    total, _ = tokens(thinker, *first)

    for other in others:
        assert prompt(*other) == prompt(*first)
        assert tokens(thinker, *other) == (total, total - 1)


@pytest.mark.real
def test_engines_find_less_of_another_prompt(thinker: RealEngine) -> None:
    tokens(thinker, *openai(PLAIN[3]))
    other = anthropic(PLAIN[4])

    assert prompt(*other) != prompt(*openai(PLAIN[3]))
    total, cached = tokens(thinker, *other)
    assert cached < total - 1
