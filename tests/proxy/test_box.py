"""What one box of a fleet knows, and how it can be reached."""

import socket
from pathlib import Path

import pytest

from proxy.box import BoxError, own_address, read_secret, way_in
from proxy.config import BoxConfig
from proxy.endpoint import MASK, Gate

SECRET = "0123456789abcdef"


@pytest.mark.parametrize(
    ("options", "gate"),
    [
        ({}, None),
        ({"gate": "10.0.0.1:0"}, Gate("10.0.0.1", 7, "")),
        ({"gate": "box-a:11436", "tls_cert": "/c", "tls_key": "/k"}, Gate("box-a", 7, "", tls=True)),
        ({"gate": ":11436"}, Gate("127.0.0.1", 7, "")),
        ({"gate": "0.0.0.0:11436"}, Gate("127.0.0.1", 7, "")),
        ({"gate": "[::1]:11436"}, Gate("::1", 7, "")),
        ({"gate": ":11436", "gate_address": "[2001:db8::1]:9"}, Gate("2001:db8::1", 9, "")),
    ],
)
def test_the_way_in(options: dict[str, str], gate: Gate | None) -> None:
    assert way_in(BoxConfig.model_validate(options), 7, ("127.0.0.1", 6379)) == gate


def test_secrets_come_from_the_option_or_its_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    assert read_secret(BoxConfig()) == ""
    assert read_secret(BoxConfig.model_validate({"secret": SECRET})) == SECRET
    assert read_secret(BoxConfig(secret_file=file)) == SECRET
    both = {"secret": "another-secret-of-boxes", "secret_file": tmp_path / "none"}
    assert read_secret(BoxConfig.model_validate(both)) == "another-secret-of-boxes"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"tiny7", "is too short: it has 5 characters and needs 16"),
        (b"", "is too short"),
        (MASK.encode(), "is a mask"),
        (b"two words of a secret", "has blanks"),
        ("\u00e9".encode() * 20, "not ASCII"),
        (b"\xff" * 20, "is not text"),
        (b"first-line-of-it\nsecond-line-of-it", "has blanks"),
        (None, "cannot be read: No such file"),
    ],
)
def test_what_is_no_secret_is_not_shown(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BoxError, match=words) as caught:
        read_secret(BoxConfig(secret_file=file))
    assert str(file) in str(caught.value)
    assert "How to fix: " in str(caught.value)
    assert not content or content.decode("utf-8", "replace") not in str(caught.value)


def test_own_address() -> None:
    assert own_address(("127.0.0.1", 6379)) == "127.0.0.1"
    assert own_address()
    assert own_address(("nobody.invalid", 1)) == socket.gethostname()
