"""The canonical prompt: the same for the same conversation in every dialect and spelling."""

import json
import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from proxy.dialects import ROUTES, ClientError, Kind, prompt_of
from scheduler.domain import BLOCK_BYTES, Operation
from tests.proxy.dialects.conversations import (
    DIALECTS,
    HELLO,
    IMAGE,
    Turn,
    anthropic,
    conversations,
    ollama,
    openai,
    prompt,
    stamped,
)
from tests.proxy.dialects.support import call_of
from tests.proxy.dialects.test_prompt_stream import JSON


@given(conversations(), st.booleans())
def test_every_dialect_gives_the_same_chain(turns: list[Turn], tools: bool) -> None:
    found = [prompt(*write(turns, tools=tools)) for write in DIALECTS]

    assert found == [found[0]] * len(DIALECTS)
    assert len(found[0].ends) == len(turns)


@pytest.mark.parametrize("write", DIALECTS)
@given(conversations())
def test_another_message_keeps_all_that_was_there(write: Any, turns: list[Turn]) -> None:
    before, after = prompt(*write(turns)), prompt(*write([*turns, {"role": "user", "text": "And now?"}]))

    assert after.ends[:-1] == before.ends
    assert after.blocks[: len(before.blocks)] == before.blocks


@given(conversations(), st.data())
def test_a_change_anywhere_changes_all_that_follows_and_nothing_before(turns: list[Turn], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(turns) - 1))
    text = turns[place]["text"]
    where = data.draw(st.integers(0, len(text)))
    changed = text[:where] + data.draw(st.sampled_from(["x", "é", "\n", "\0"])) + text[where:]
    other = [*turns[:place], turns[place] | {"text": changed}, *turns[place + 1 :]]

    before, after = prompt(*openai(turns)), prompt(*openai(other))

    assert before.ends[:place] == after.ends[:place]
    assert not {end for _, end in before.ends[place:]} & {end for _, end in after.ends[place:]}
    first = (before.ends[place - 1][0] if place else 0) // BLOCK_BYTES
    same = [mine == its for mine, its in zip(before.blocks, after.blocks, strict=False)]
    assert all(same[:first])
    assert same == sorted(same, reverse=True)
    last = before.ends[place][0]
    assert not any(same[-(-last // BLOCK_BYTES) :])


CHANGES: dict[str, tuple[list[Turn], list[Turn]]] = {
    "role": ([{"role": "user", "text": "a"}], [{"role": "assistant", "text": "a"}]),
    "border": (
        [{"role": "user", "text": "ab"}, {"role": "user", "text": "c"}],
        [{"role": "user", "text": "a"}, {"role": "user", "text": "bc"}],
    ),
    "thinking": (
        [{"role": "assistant", "text": "a", "thinking": "b"}],
        [{"role": "assistant", "text": "a", "thinking": "c"}],
    ),
    "call": (
        [{"role": "assistant", "text": "", "calls": [("f", {"a": 1})]}],
        [{"role": "assistant", "text": "", "calls": [("g", {"a": 1})]}],
    ),
    "arguments": (
        [{"role": "assistant", "text": "", "calls": [("f", {"a": 1})]}],
        [{"role": "assistant", "text": "", "calls": [("f", {"a": "1"})]}],
    ),
    "image": (
        [{"role": "user", "text": "a", "images": [IMAGE]}],
        [{"role": "user", "text": "a", "images": ["iVBORw0KGgp="]}],
    ),
    "image left out": ([{"role": "user", "text": "a", "images": [IMAGE]}], [{"role": "user", "text": "a"}]),
}


@pytest.mark.parametrize("write", [ollama, openai, anthropic])
@pytest.mark.parametrize("name", CHANGES)
def test_each_part_counts(name: str, write: Any) -> None:
    one, other = CHANGES[name]

    assert prompt(*write(one)).ends[-1] != prompt(*write(other)).ends[-1]


def test_tools_and_model_come_before_the_messages() -> None:
    turns = [{"role": "user", "text": "Hello"}]
    path, body = openai(turns)

    assert prompt(path, body).ends != prompt(*openai(turns, tools=True)).ends
    assert prompt(path, body).ends != prompt(path, body | {"model": "other"}).ends
    assert prompt(path, body) == prompt(path, body | {"model": "SmolLM2:latest"})


# Spelling.


def respelled(value: Any, rng: random.Random) -> Any:
    """The same value with other key orders."""
    if isinstance(value, dict):
        pairs = [(key, respelled(each, rng)) for key, each in value.items()]
        rng.shuffle(pairs)
        return dict(pairs)
    return [respelled(each, rng) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("write", DIALECTS)
@given(conversations(), st.randoms(use_true_random=False))
def test_spelling_unknown_fields_and_sampling_do_not_matter(write: Any, turns: list[Turn], rng: random.Random) -> None:
    path, body = write(turns, tools=True)
    options: dict[str, Any] = {"temperature": 0.3, "seed": 4, "stop": ["\n"]}
    other = body | {"user_id": "me", "metadata": {"a": 1}, "keep_alive": 60, "stream": True} | options
    other |= {"options": options | {"num_ctx": 4096}} if path == "/api/chat" else {}
    text = json.dumps(respelled(other, rng), indent=rng.choice([None, 1]), ensure_ascii=rng.random() < 0.5)

    assert prompt(path, text.encode()) == prompt(path, body)


def test_ollama_takes_keys_in_any_case() -> None:
    body = {"Model": "smollm2", "MESSAGES": [{"Role": "User", "CONTENT": "Hello", "extra": 1}]}

    assert prompt("/api/chat", body) == prompt(*ollama([{"role": "user", "text": "Hello"}]))


SAME: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "generate is a chat": [
        ollama([{"role": "system", "text": "Be brief."}, {"role": "user", "text": "Hello"}]),
        ("/api/generate", {"model": "smollm2", "system": "Be brief.", "prompt": "Hello"}),
        ("/v1/responses", {"model": "smollm2", "instructions": "Be brief.", "input": "Hello"}),
        ("/v1/messages", {"model": "smollm2", "max_tokens": 9, "system": "Be brief.", "messages": [HELLO]}),
    ],
    "generate with an image": [
        ollama([{"role": "user", "text": "What is it?", "images": [IMAGE]}]),
        ("/api/generate", {"model": "smollm2", "prompt": "What is it?", "images": [IMAGE]}),
    ],
    "raw text": [
        ("/api/generate", {"model": "smollm2", "prompt": "Once", "raw": True}),
        ("/v1/completions", {"model": "smollm2", "prompt": "Once"}),
        ("/v1/completions", {"model": "smollm2", "prompt": ["Once"], "n": 2}),
        ("/completion", {"model": "smollm2", "prompt": "Once"}),
        ("/completions", {"model": "smollm2", "prompt": ["Once"], "n_predict": 4}),
        ("/completion", {"model": "smollm2", "prompt": {"prompt_string": "Once"}}),
    ],
    "tokens": [
        ("/completion", {"prompt": [1, 2, 3]}),
        ("/completion", {"prompt": [[1, 2, 3]]}),
        ("/v1/completions", {"prompt": [1, 2, 3]}),
    ],
    "a gap": [
        ("/api/generate", {"model": "smollm2", "prompt": "def f(", "suffix": "): pass"}),
        ("/infill", {"model": "smollm2", "input_prefix": "def f(", "input_suffix": "): pass"}),
        ("/infill", {"model": "smollm2", "input_prefix": "def ", "prompt": "f(", "input_suffix": "): pass"}),
        ("/v1/completions", {"model": "smollm2", "prompt": "def f(", "suffix": "): pass"}),
    ],
    "other names of roles": [
        ("/v1/chat/completions", {"messages": [{"role": "developer", "content": "Be brief."}, HELLO]}),
        ("/v1/chat/completions", {"messages": [{"role": "system", "content": "Be brief."}, HELLO]}),
        ("/v1/responses", {"input": [{"role": "developer", "content": "Be brief."}, HELLO]}),
    ],
    "Claude Code's stamp": [stamped("a5145"), stamped("00000")],
    "a turn of several items": [
        (
            "/v1/chat/completions",
            {"messages": [HELLO, {"role": "assistant", "content": "A", "reasoning": "Hm"}, HELLO]},
        ),
        (
            "/v1/responses",
            {
                "input": [
                    HELLO,
                    {"type": "message", "role": "assistant", "content": "A"},
                    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
                    HELLO,
                ]
            },
        ),
    ],
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_prompt_in_other_words(name: str) -> None:
    found = [prompt(*each) for each in SAME[name]]

    assert found == [found[0]] * len(found)


def test_what_only_looks_alike_differs() -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/completion", {"prompt": "Once"}),
        ("/v1/responses", {"input": "Once"}),
        ("/completion", {"prompt": [1, 2]}),
        ("/completion", {"prompt": [1, "Once"]}),
        ("/completion", {"prompt": {"prompt_string": "Once", "multimodal_data": [IMAGE]}}),
        ("/infill", {"input_prefix": "Once"}),
        ("/infill", {"input_prefix": "Once", "input_extra": [{"filename": "a", "text": "b"}]}),
        ("/api/generate", {"model": "m", "prompt": "Once", "template": "{{ .Prompt }}"}),
        ("/api/generate", {"model": "m", "prompt": "Once", "context": [1, 2]}),
    ]

    assert len({prompt(*each).ends[-1] for each in bodies}) == len(bodies)


NONE: dict[str, tuple[str, dict[str, Any]]] = {
    "embedding": ("/api/embed", {"model": "m", "input": "a"}),
    "openai embedding": ("/v1/embeddings", {"model": "m", "input": "a"}),
    "rerank": ("/rerank", {"query": "a", "documents": ["b"]}),
    "tokenize": ("/tokenize", {"content": "a"}),
    "count": ("/v1/messages/count_tokens", {"messages": [HELLO]}),
    "load": ("/api/generate", {"model": "m"}),
    "unload": ("/api/chat", {"model": "m", "keep_alive": 0}),
    "several prompts": ("/v1/completions", {"prompt": ["a", "b"]}),
    "several lists of tokens": ("/completion", {"prompt": [[1], [2]]}),
    "no prompt": ("/completion", {}),
    "no messages": ("/v1/chat/completions", {"messages": []}),
    "messages of another kind": ("/v1/chat/completions", {"messages": ["a"]}),
    "blocks of another kind": ("/v1/messages", {"max_tokens": 1, "messages": ["a"]}),
    "no input": ("/v1/responses", {}),
    "context of another kind": ("/api/generate", {"model": "m", "prompt": "a", "context": ["b"]}),
}


@pytest.mark.parametrize("name", NONE)
def test_where_nothing_can_be_reused_there_is_no_prompt(name: str) -> None:
    assert prompt_of(call_of(*NONE[name])) is None


def test_every_route_that_generates_has_a_prompt() -> None:
    body = {"model": "m", "max_tokens": 1, "messages": [HELLO], "prompt": "a", "input": "a", "input_prefix": "a"}
    generate = (Operation.CHAT, Operation.GENERATE, Operation.INFILL)

    paths = [route.path for route in ROUTES.values() if route.kind is Kind.INFERENCE and route.operation in generate]
    paths.remove("/v1/audio/transcriptions")  # a recording
    assert len(paths) == 9
    assert all(prompt(path, body).ends for path in paths)


FIELDS = (
    "messages prompt suffix system tools input instructions input_prefix input_suffix input_extra context images raw"
)


@given(
    st.sampled_from([route.path for route in ROUTES.values() if route.kind is Kind.INFERENCE]),
    st.dictionaries(
        st.sampled_from(FIELDS.split()),
        JSON | st.lists(st.dictionaries(st.sampled_from(["role", "content", "type", "tool_calls", "output"]), JSON)),
    ),
)
def test_bodies_that_no_engine_takes_do_no_harm(path: str, body: dict[str, Any]) -> None:
    try:
        call = call_of(path, {"model": "m", "max_tokens": 1} | body)
    except ClientError:
        return
    assert prompt_of(call) == prompt_of(call)


def test_a_body_nested_as_deeply_as_can_be_read() -> None:
    inner = "[" * 900 + "]" * 900
    body = f'{{"messages":[{{"role":"user","content":{inner}}}],"tools":[{{"name":"f","parameters":{inner}}}]}}'

    prompt_of(call_of("/v1/chat/completions", body.encode()))
