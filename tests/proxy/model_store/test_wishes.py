"""What clients want of the model store: read as Ollama reads it, written anew with nothing else in it."""

from typing import Any

import msgspec
import pytest

from proxy.dialects import ClientError
from proxy.model_store.wishes import Change, Wish, read_wish

SHA = f"sha256:{'a' * 64}"


def read(change: Change, body: dict[str, Any], *, admin: bool = True) -> Wish:
    return read_wish(change, msgspec.json.encode(body), admin=admin)


def refusal(change: Change, body: Any, *, admin: bool = True) -> tuple[int, str]:
    with pytest.raises(ClientError) as refused:
        read_wish(change, body if isinstance(body, bytes) else msgspec.json.encode(body), admin=admin)
    return refused.value.status, refused.value.message


def test_only_known_fields_go_on() -> None:
    wish = read(
        Change.PULL,
        {"Model": "tiny", "insecure": False, "stream": False, "username": "x", "password": "y", "digest": "../../x"},
    )

    assert wish.model == "tiny"
    assert not wish.stream
    assert msgspec.json.decode(wish.encoded()) == {"model": "tiny", "stream": True}


def test_the_old_name_of_the_field() -> None:
    assert read(Change.PULL, {"name": "tiny"}).model == "tiny"
    assert read(Change.DELETE, {"name": "tiny"}).body == {"model": "tiny"}


@pytest.mark.parametrize(
    ("change", "body", "status", "message"),
    [
        (Change.PULL, b"", 400, "missing request body"),
        (Change.PULL, b"[]", 400, "json: cannot unmarshal array into Go value of type api.PullRequest"),
        (Change.PULL, {}, 400, "invalid model name"),
        (
            Change.PULL,
            {"model": 3},
            400,
            "json: cannot unmarshal number into Go struct field PullRequest.model of type string",
        ),
        (Change.PUSH, {}, 400, "model is required"),
        (Change.COPY, {"source": "../x", "destination": "y"}, 400, 'source "../x" is invalid'),
        (Change.COPY, {"source": "x", "destination": ""}, 400, 'destination "" is invalid'),
        (Change.DELETE, {"model": "/etc"}, 400, 'name "/etc" is invalid'),
        (Change.CREATE, {"model": "a..b", "from": "x"}, 400, "invalid model name"),
    ],
)
def test_refusals_are_ollamas(change: Change, body: Any, status: int, message: str) -> None:
    assert refusal(change, body) == (status, message)


@pytest.mark.parametrize("source", ["/etc/passwd", "./model.gguf", "../../secret", "file:///etc/passwd"])
def test_create_takes_no_path(source: str) -> None:
    """CVE-2024-39719, CVE-2024-39720, CVE-2024-39721: FROM a path of the backend."""
    assert refusal(Change.CREATE, {"model": "m", "from": source})[0] == 400


@pytest.mark.parametrize("field", ["modelfile", "path", "Modelfile", "PATH"])
def test_create_takes_no_modelfile(field: str) -> None:
    status, message = refusal(Change.CREATE, {"model": "m", field: "FROM /dev/random"})
    assert status == 400
    assert "names files of the backend" in message


@pytest.mark.parametrize("table", ["files", "adapters"])
def test_create_takes_blobs_by_digest_under_plain_names(table: str) -> None:
    """CVE-2024-45436: names that leave the directory."""
    assert read(Change.CREATE, {"model": "m", table: {"a.gguf": SHA}}).body[table] == {"a.gguf": SHA}
    assert refusal(Change.CREATE, {"model": "m", table: {"../a.gguf": SHA}})[0] == 400
    assert refusal(Change.CREATE, {"model": "m", table: {"a.gguf": "/etc/passwd"}})[0] == 400
    assert refusal(Change.CREATE, {"model": "m", table: {"a.gguf": 7}})[0] == 400


def test_what_create_passes_on() -> None:
    body = {
        "model": "m",
        "from": "smol",
        "system": "Be brief.",
        "template": "{{ .Prompt }}",
        "license": ["MIT"],
        "parameters": {"num_ctx": 4096},
        "messages": [{"role": "user", "content": "x"}],
        "quantization": "q4_K_M",
    }
    wish = read(Change.CREATE, body | {"bogus": 1})
    assert wish.body == {key: value for key, value in body.items() if key != "quantization"} | {"quantize": "q4_K_M"}


@pytest.mark.parametrize(
    ("change", "body"),
    [
        (Change.PULL, {"model": "evil.example/a/b"}),
        (Change.PUSH, {"model": "evil.example/a/b"}),
        (Change.PULL, {"model": "tiny", "insecure": True}),
        (Change.PUSH, {"model": "tiny", "insecure": True}),
        (Change.CREATE, {"model": "m", "from": "evil.example/a/b"}),
        (Change.CREATE, {"model": "m", "from": "x", "remote_host": "http://169.254.169.254"}),
    ],
)
def test_what_reaches_other_hosts_is_for_admins(change: Change, body: dict[str, Any]) -> None:
    """SSRF (CVE-2026-5530 and its kind), and what is uploaded to a stranger (CVE-2026-7482, CVE-2024-39722)."""
    read(change, body)
    assert refusal(change, body, admin=False)[0] == 403


def test_wishes_that_are_the_same() -> None:
    first, second = read(Change.PULL, {"model": "Tiny"}), read(Change.PULL, {"name": "tiny:latest", "stream": False})
    assert first.key == second.key
    assert first.key != read(Change.PULL, {"model": "tiny", "insecure": True}).key
    assert first.is_joinable
    assert not read(Change.DELETE, {"model": "tiny"}).is_joinable


@pytest.mark.parametrize(
    ("change", "method"),
    [(Change.PULL, "POST"), (Change.DELETE, "DELETE"), (Change.COPY, "POST"), (Change.CREATE, "POST")],
)
def test_routes(change: Change, method: str) -> None:
    wish = Wish(change, "m", {})
    assert (wish.method, wish.path) == (method, f"/api/{change.value}")
