"""Origins: the rules Ollama has, which web pages rely on."""

import pytest

from proxy.origins import Origins

LOCAL = Origins([], loopback=True)


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://localhost:3000", "127.0.0.1:11434", True),
        ("https://127.0.0.1", "127.0.0.1:11434", True),
        ("http://[::1]:8080", "127.0.0.1:11434", True),
        ("vscode-webview://abc", "127.0.0.1:11434", True),
        ("http://evil.example", "127.0.0.1:11434", False),
        ("http://localhost.evil.example", "127.0.0.1:11434", False),
        ("http://box.lan:11434", "box.lan:11434", True),
        ("null", "127.0.0.1:11434", False),
        ("gopher://localhost", "127.0.0.1:11434", False),
        ("http://[", "127.0.0.1:11434", False),
        ("http://[x]", "127.0.0.1:11434", False),
        ("http://127.0.0.1\u2100", "127.0.0.1:11434", False),
    ],
)
def test_origin(origin: str, host: str, allowed: bool) -> None:
    assert LOCAL.origin_allowed(origin, host) is allowed


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:11434", True),
        ("localhost", True),
        ("[::1]:11434", True),
        ("192.168.1.20:11434", True),
        ("box.local", True),
        ("evil.example", False),
        ("evil.example:11434", False),
        ("8.8.8.8", False),
        ("[::1]evil.example", False),
    ],
)
def test_host_on_a_loopback_listener(host: str, allowed: bool) -> None:
    assert LOCAL.host_allowed(host) is allowed


def test_any_host_when_listening_for_others() -> None:
    assert Origins([], loopback=False).host_allowed("box.example")


def test_configured_origins() -> None:
    assert Origins(["https://chat.example/"], loopback=True).origin_allowed("https://chat.example", "x")
    everyone = Origins(["*"], loopback=True)
    assert everyone.response_headers("http://evil.example", "x") == [("Access-Control-Allow-Origin", "*")]


def test_headers_are_for_allowed_pages_only() -> None:
    assert LOCAL.response_headers(None, "x") == []
    assert LOCAL.response_headers("http://evil.example", "x") == []
    assert ("Vary", "Origin") in LOCAL.response_headers("http://localhost:1", "x")
    assert LOCAL.response_headers("http://x", "x") == LOCAL.response_headers("https://X", "x") == []


def test_preflights() -> None:
    known = LOCAL.preflight_headers("http://localhost:1", ["HEAD", "GET"])
    assert ("Allow", "HEAD, GET") in known
    assert ("Access-Control-Allow-Origin", "http://localhost:1") in known
    assert "Allow" not in dict(LOCAL.preflight_headers("http://localhost:1", []))
    everyone = Origins(["*"], loopback=True).preflight_headers("http://evil.example", ["POST"])
    assert ("Access-Control-Allow-Origin", "*") in everyone
    assert "Vary" not in dict(everyone)
