import msgspec
import pytest

from proxy.dialects.splice import splice


@pytest.mark.parametrize("body", [b"{}", b" { } \n", b'{"a":1}', b'{\n "a": {"b": "}"}\n}\n', b'{"stream":false}'])
def test_fields_are_added_and_win(body: bytes) -> None:
    out = splice(body, {"stream": True, "x": [1]})
    assert msgspec.json.decode(out) == msgspec.json.decode(body) | {"stream": True, "x": [1]}
    assert out.startswith(body.rstrip()[:-1].rstrip())


def test_nothing_added_is_nothing_touched() -> None:
    assert splice(b' {"a" : 1} ', {}) == b' {"a" : 1} '
