"""The stream: marks that text cannot forge, and the chain of hashes against a plain reading of its definition."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from xxhash import xxh3_64

from proxy.dialects import prompt_stream
from proxy.dialects.prompt_stream import PromptStream
from scheduler.domain import BLOCK_BYTES, Prompt

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def bytes_of(stream: PromptStream) -> bytes:
    return bytes(stream._data)


def said(*args: Any, **kwargs: Any) -> bytes:
    stream = PromptStream("")
    stream.say(*args, **kwargs)
    return bytes_of(stream)


def chain(data: bytes, ends: list[int]) -> Prompt:
    """The definition, step by step, for prompts within the bounds."""
    states = [0]
    for start in range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES):
        states.append(one_hash(states[-1], data[start : start + BLOCK_BYTES]))
    last = [(end, one_hash(states[end // BLOCK_BYTES], data[end - end % BLOCK_BYTES : end])) for end in ends]
    return Prompt(blocks=tuple(states[1:]), ends=tuple(last))


def one_hash(before: int, data: bytes) -> int:
    hasher = xxh3_64()
    hasher.update(before.to_bytes(8, "little"))
    hasher.update(data)
    return hasher.intdigest()


def test_the_chain_of_a_known_text_stays_what_it_is() -> None:
    """The proxies of a fleet compare these numbers, also while they are updated one by one."""
    stream = PromptStream("llama3.1:8b")
    stream.say("system", "Be brief. " * 30)
    stream.say("user", "Hello")

    assert stream.hashed() == Prompt(
        blocks=(13329957207682269586,), ends=((319, 2447597755536548824), (330, 7662964685497047731))
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (said("User", "Hi"), b"\xf9user\xfaHi"),
        (said("developer", None), b"\xf9system\xfa"),
        (said("function", "7"), b"\xf9tool\xfa7"),
        (said(None, 5), b"\xf9\xfa5"),
        (said("assistant", "", thinking="Hm"), b"\xf9assistant\xfa\xfeHm\xfa"),
        (said("assistant", "A", calls=[("f", '{"b": 1, "a":2}')]), b'\xf9assistant\xfaA\xfcf\xfd{"a":2,"b":1}'),
        (said("assistant", "A", calls=[("f", {"b": 1, "a": 2})]), b'\xf9assistant\xfaA\xfcf\xfd{"a":2,"b":1}'),
        (said("assistant", "A", calls=[("f", "{no"), ("g", "")]), b"\xf9assistant\xfaA\xfcf\xfd{no\xfcg\xfd{}"),
        (said("user", [{"text": "a"}, {"text": "b"}, "c"]), b"\xf9user\xfaa\nb\nc"),
        (said("assistant", [{"type": "refusal", "refusal": "No"}]), b"\xf9assistant\xfaNo"),
    ],
    ids=range(10),
)
def test_the_bytes_of_a_message(found: bytes, expected: bytes) -> None:
    assert found == expected


def test_the_bytes_of_tools_and_of_what_has_no_template() -> None:
    stream = PromptStream("m:latest")
    stream.tools([{"name": "f", "input_schema": {"b": 1, "a": 2}}, {"type": "web_search"}, 3], "input_schema")
    stream.template("T")
    stream.file("a.py", "x")
    assert stream.text([1, 2, "x", 3])
    assert bytes_of(stream) == (
        b'm:latest\xf8f\xfa\xfd{"a":2,"b":1}\xf5T\xf5a.py\xfax'
        b"\xf7\1\0\0\0\2\0\0\0\xff\xff\xff\xffx\xf7\3\0\0\0\xff\xff\xff\xff"
    )

    stream = PromptStream("")
    assert stream.gap(("a", "b"), "c")
    assert stream.raw([[1, 2]])
    assert bytes_of(stream) == b"\xc0ab\xc1c\xf6\xf7\1\0\0\0\2\0\0\0"


@pytest.mark.parametrize("prompt", [None, 5, [], ["a", "b"], [[1], [2]], [1.5], [1, None], [2**40], [1, [2]], {"a": 1}])
def test_what_is_no_single_prompt_is_told(prompt: object) -> None:
    assert not PromptStream("").raw(prompt)


IMAGE = "iVBORw0KGgo="
OTHER = "iVBORw0KGgp="


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}},
        {"type": "image", "source": {"type": "base64", "data": "iVBORw0K\r\nGgo="}},
    ],
)
def test_an_image_is_the_same_in_whatever_it_is_wrapped(part: dict[str, Any]) -> None:
    assert said("user", [{"type": "text", "text": "See:"}, part]) == said("user", "See:", images=[IMAGE])
    assert said("user", [part]) != said("user", "", images=[OTHER])
    assert said("user", [part, {"text": "a"}, part]) == b"\xf9user\xfa" + (b"a").join([said("", [part])[2:]] * 2)


def test_media_of_unknown_kinds_differ_by_all_that_they_say() -> None:
    assert said("user", [{"type": "file", "file": {"id": "a"}}]) != said(
        "user", [{"type": "file", "file": {"id": "b"}}]
    )


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(max_size=700)), min_size=1, max_size=9))
def test_the_chain_is_as_defined(messages: list[tuple[str, str]]) -> None:
    stream, ends = PromptStream("m:latest"), []
    for role, text in messages:
        stream.say(role, text)
        ends.append(len(bytes_of(stream)))

    assert stream.hashed() == chain(bytes_of(stream), ends)


def test_nothing_said_has_no_chain() -> None:
    assert PromptStream("m").hashed() is None


def long_chain(texts: list[str]) -> Prompt:
    stream = PromptStream("m")
    for text in texts:
        stream.say("user", text)
    prompt = stream.hashed()
    assert prompt is not None
    return prompt


def test_beyond_the_blocks_the_ends_still_tell_prompts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_stream, "MAX_BLOCKS", 2)
    texts = ["a" * 300, "b" * 300, "c" * 300, "d" * 300]
    whole, shorter = long_chain(texts), long_chain(texts[:3])
    other = long_chain([*texts[:2], "x" + texts[2][1:], texts[3]])

    assert len(whole.blocks) == 2
    assert whole.size_bytes == sum(map(len, texts)) + 1 + 4 * len(b"-user-")
    assert (whole.blocks, whole.ends[:3]) == (shorter.blocks, shorter.ends)
    assert [mine == its for mine, its in zip(whole.ends, other.ends, strict=True)] == [True, True, False, False]


def test_of_very_many_messages_the_first_ends_and_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_stream, "MAX_ENDS", 3)
    many, more = long_chain(["a"] * 5), long_chain(["a"] * 9)

    assert [end for end, _ in many.ends] == [8, 15, 36]
    assert many.ends[:2] == more.ends[:2]
    assert many.blocks == more.blocks == ()


@given(JSON, JSON, JSON, JSON)
def test_values_of_any_kind_do_no_harm(one: object, two: object, three: object, four: object) -> None:
    stream = PromptStream("m")
    stream.tools(one)
    stream.tools([{"function": {"name": two, "description": three, "parameters": four}}])
    stream.say(one, two, thinking=three, images=four, calls=[(one, two)])
    stream.say("user", [one, {"text": two}, {"image_url": three}, {"source": {"data": four}}])
    stream.file(one, two)
    stream.gap((one, two), three)
    stream.raw(four)
    stream.raw([one, two])

    assert stream.hashed() == stream.hashed()


def test_arguments_nested_too_deeply_to_read_stay_text() -> None:
    text = "[" * 100_000
    with pytest.raises(RecursionError):
        msgspec.json.decode(text)

    assert said("assistant", "", calls=[("f", text)]).endswith(text.encode())
