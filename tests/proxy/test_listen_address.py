"""Addresses to listen on: how they are written, and what is none."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from proxy.config import Config
from proxy.listen_address import ListenAddress, parse_listen


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:11434", ListenAddress(host="127.0.0.1", port=11434)),
        ("[::1]:80", ListenAddress(host="::1", port=80)),
        (":8080", ListenAddress(host="", port=8080)),
        ("gpu-box:0", ListenAddress(host="gpu-box", port=0)),
        ("unix:/run/x.sock", ListenAddress(unix_path=Path("/run/x.sock"))),
        ("unix:///run/x.sock", ListenAddress(unix_path=Path("/run/x.sock"))),
    ],
)
def test_listen_addresses(text: str, address: ListenAddress) -> None:
    assert parse_listen(text) == address
    assert Config(listen=text).listen == text
    assert parse_listen(str(address)) == address


@pytest.mark.parametrize(
    "text", ["", "0.0.0.0", "11434", "http://0.0.0.0:1", "::1:80", "a:70000", "a:b", "unix:x", "a/b:1", "a: 1", "a:١"]
)
def test_listen_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|absolute"):
        parse_listen(text)
    with pytest.raises(ValidationError):
        Config(listen=text)
