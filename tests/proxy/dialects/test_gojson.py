import pytest

from proxy.dialects.errors import ClientError
from proxy.dialects.gojson import decode, fold, mismatch, quote, word


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
    ],
)
def test_gos_words(body: bytes, words: str) -> None:
    assert complaint(body).startswith(words)


def test_what_go_forgives() -> None:
    assert decode(b'{"a":"\xff"}') == {"a": "\ufffd"}
    assert decode(b'{"a":"\\ud83d"}') == {"a": "\ufffd"}
    assert decode(b' {"a":1,"a":2}\n') == {"a": 2}


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
