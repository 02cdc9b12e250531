import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.errors import ClientError
from proxy.dialects.gojson import MAX_MENDED, WORDED_BYTES, decode, fold, mismatch, quote, word


def complaint(body: bytes) -> str:
    with pytest.raises(ClientError) as caught:
        decode(body)
    assert caught.value.status == 400
    return caught.value.message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "missing request body"),
        (b" \n\t", "missing request body"),
        (b'{"model": ', "unexpected EOF"),
        (b"{", "unexpected EOF"),
        (b'{"a', "unexpected EOF"),
        (b'{"a":1', "unexpected EOF"),
        (b"hello", "invalid character 'h' looking for beginning of value"),
        (b'{"a":NaN}', "invalid character 'N' looking for beginning of value"),
        (b'{"a":1,}', "invalid character"),
        (b"{a:1}", "invalid character 'a' looking for beginning of object key string"),
        (b'{"a" 1}', "invalid character '1' after object key"),
        (b'{"a":1 "b":2}', "invalid character '\"' after object key:value pair"),
        (b'{"a":["]{" 2]}', "invalid character '2' after array element"),
        (b'{"a":1} x', "invalid character 'x' after top-level value"),
        (b'{"a":"\n"}', "invalid character '\\n' in string literal"),
        (b"{'a':1}", "invalid character '\\'' looking for beginning of object key string"),
        (b"[" * 100_000, "exceeded max depth"),
        (b"\xef\xbb\xbf{}", "invalid character '\ufeff' looking for beginning of value"),
        (b'{"a":1e999}', "json: cannot unmarshal number 1e999 into Go value of type float64"),
        (b'{"a":-1e999}', "json: cannot unmarshal number -1e999 into Go value of type float64"),
        (b'{"a":' + b"9" * 5000 + b"}", f"json: cannot unmarshal number {'9' * 40}… into Go value of type float64"),
        (b'{"a":"\x00\\ud800"}', "invalid character '\x00' in string literal"),
        (b'{"a":"' + b"x" * WORDED_BYTES + b'" "y"}', "invalid JSON: JSON is malformed: expected ',' or '}'"),
        (b'{"a":"' + b"\\ud800" * (MAX_MENDED + 1) + b'"}', "invalid JSON: "),
    ],
)
def test_gos_words(body: bytes, words: str) -> None:
    assert complaint(body).startswith(words)


def test_what_go_forgives() -> None:
    assert decode(b'{"a":"\xff"}') == {"a": "\ufffd"}
    assert decode(b'{"a":"\\ud83d"}') == {"a": "\ufffd"}
    assert decode(b'"' + b"\xff" * WORDED_BYTES + b'"') == "\ufffd" * WORDED_BYTES
    assert decode(b' {"a":1,"a":2}\n') == {"a": 2}


@pytest.mark.parametrize(
    ("escapes", "text"),
    [
        ("\\ud83d\\ude00", "😀"),
        ("\\uD83D\\uDE00x\\uDe00", "😀x\ufffd"),
        ("\\ud83d\\ud83d\\ude00", "\ufffd😀"),
        ("\\ud83d\\ude00\\ude00", "😀\ufffd"),
        ("\\ude00\\ud83d", "\ufffd\ufffd"),
        ("\\\\ud83d \\ud83d", "\\ud83d \ufffd"),
        ("\\\\\\ud83d\\\\", "\\\ufffd\\"),
        ("\\ud83dabc\\u0041", "\ufffdabcA"),
    ],
)
def test_lone_surrogates(escapes: str, text: str) -> None:
    assert decode(b'{"\\udddd":"' + escapes.encode() + b'"}') == {"\ufffd": text}


@given(st.text(st.sampled_from('\ud83d\ude00a\\"u'), max_size=12), st.text(max_size=5))
def test_surrogates_as_the_standard_library_pairs_them(text: str, other: str) -> None:
    body = json.dumps([text, other]).encode()
    assert decode(body) == [re.sub("[\ud800-\udfff]", "\ufffd", part) for part in json.loads(body)]


def test_keys_are_folded_like_go_does() -> None:
    assert fold({"model": 1, "top_k": 2}) == ({"model": 1, "top_k": 2}, True)
    assert fold({"Model": 1, "model": 2, "STREAM": 3}) == ({"model": 2, "stream": 3}, False)
    assert fold({"\u017ftream": 1, "\u212aeep": 2}) == ({"stream": 1, "keep": 2}, False)
    assert fold({"1": 1}) == ({"1": 1}, True)


def test_mismatches() -> None:
    assert (
        mismatch("x", "S", "f", "[]int").message
        == "json: cannot unmarshal string into Go struct field S.f of type []int"
    )
    assert "number 1.5 into" in mismatch(1.5, "S", "f", "int").message
    values: list[object] = [True, 1, 1.5, "", [], {}, None]
    assert [word(value) for value in values] == [
        "bool", "number", "number", "string", "array", "object", "null",
    ]  # fmt: skip
    assert quote('a"b') == '"a\\"b"'
