import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import Call, ClientError, Route, find, plan, prompt_of, read_call
from proxy.dialects.multipart import MAX_FORM_BYTES, read_form
from scheduler.domain import Engine
from tests.proxy.dialects.support import FACTS, OLLAMA

KIND = "multipart/form-data; boundary=----x"
AUDIO = bytes(range(256)) + b"\r\n--not-it\r\n"


def form(*parts: tuple[str, bytes], boundary: bytes = b"----x") -> bytes:
    body = b""
    for name, data in parts:
        more = '; filename="a.wav"\r\nContent-Type: audio/wav' if name == "file" else ""
        body += b"--" + boundary + f'\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + data
        body += b"\r\n"
    return body + b"--" + boundary + b"--\r\n"


def call(body: bytes, kind: str = KIND) -> Call:
    route = find("POST", "/v1/audio/transcriptions")
    assert isinstance(route, Route)
    return read_call(route, body, [("Content-Type", kind)])


def refusal(body: bytes, kind: str = KIND) -> ClientError:
    with pytest.raises(ClientError) as caught:
        call(body, kind)
    return caught.value


def test_the_form_goes_on_as_it_came() -> None:
    body = form(("file", AUDIO), ("model", b"whisper:1"), ("language", b"de"))
    made = call(body)
    sent = plan(made, OLLAMA, FACTS)

    assert (made.model, made.stream, made.seats, made.engines) == ("whisper:1", False, 1, frozenset({Engine.OLLAMA}))
    assert sent.outgoing.body == body
    assert dict(sent.outgoing.headers)["Content-Type"] == KIND
    assert made.fields == {"file": len(AUDIO), "model": "whisper:1", "language": "de"}
    assert made.prompt_bytes == len(body) - len(AUDIO)
    assert prompt_of(made) is None


def test_what_ollama_refuses() -> None:
    assert refusal(form(("file", AUDIO))).message == "model is required"
    assert refusal(form(("model", b"m"))).message == "file is required: http: no such file"
    assert refusal(form(("model", b"m"), ("file", b""))).message == "audio file is empty"
    whole = form(("model", b"m"), ("file", AUDIO))
    for body, kind in ((whole, "application/json"), (whole, "multipart/form-data"), (whole[:-30], KIND), (b"", KIND)):
        error = refusal(body, kind)
        assert (error.status, error.message[:31]) == (400, "failed to parse multipart form:")
    assert refusal(b"x" * (MAX_FORM_BYTES + 1)).status == 413
    assert refusal(form(*[("a", b"b")] * 101)).status == 400
    assert refusal(form(("a", b"b" * 70_000))).status == 400


def test_a_text_field_is_no_file_and_a_file_no_text() -> None:
    text = b'------x\r\nContent-Disposition: form-data; name="file"\r\n\r\nabc\r\n------x--\r\n'
    assert read_form(text, KIND) == {}
    file = b'------x\r\nContent-Disposition: form-data; name="model"; filename="m"\r\n\r\nabc\r\n------x--\r\n'
    assert read_form(file, KIND) == {}


@given(st.binary(max_size=300), st.text(max_size=60))
def test_any_body_is_read_or_refused(body: bytes, kind: str) -> None:
    for given_kind in (KIND, kind):
        with contextlib.suppress(ClientError):
            assert isinstance(read_form(b"------x\r\n" + body, given_kind), dict)
