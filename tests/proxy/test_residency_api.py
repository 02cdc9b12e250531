import msgspec
import pytest

from proxy.residency_api import LoadAnswer, ModelWish, load_path


def test_a_wish_takes_nothing_else() -> None:
    assert msgspec.json.decode(b'{"model":"m"}', type=ModelWish) == ModelWish("m")
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"model":"m","ctx":1}', type=ModelWish)


def test_paths_and_answers_are_stable() -> None:
    assert load_path("ab") == "/load/ab"
    assert msgspec.json.encode(LoadAnswer("1", "m", "waiting")) == (
        b'{"id":"1","model":"m","state":"waiting","backend":null,"context_tokens":null,"took_ms":null,"detail":"",'
        b'"waited_s":0.0}'
    )
