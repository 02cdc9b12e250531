"""Addresses of engines as operators write them."""

import pytest

from proxy.endpoint import MASK, Endpoint, Gate, identity, is_local, parse_endpoint, shown_url


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://127.0.0.1:8080", Endpoint("127.0.0.1:8080", 8080, "127.0.0.1")),
        ("http://gpu.lan", Endpoint("gpu.lan", 80, "gpu.lan")),
        ("http://[::1]:8080/llm/", Endpoint("[::1]:8080", 8080, "::1", prefix="/llm")),
        ("unix:/run/llama.sock", Endpoint("localhost", unix_path="/run/llama.sock")),
    ],
)
def test_parse(url: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(url) == endpoint


def test_the_key_goes_into_a_header() -> None:
    assert parse_endpoint("http://a:1", "k").headers == (("Authorization", "Bearer k"),)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "https://a:1", "http://a:0", "http://a:x", "http://:1", "unix:x", "http://a:1?x"]
)
def test_what_is_no_address_says_how_it_should_look(url: str) -> None:
    with pytest.raises(ValueError, match=r"write|needs|has no"):
        parse_endpoint(url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://u:p@h:1/0", f"redis://u:{MASK}@h:1/0"),
        ("rediss://:p@h", f"rediss://:{MASK}@h"),
        ("unix:///run/v.sock?db=1&password=p", f"unix:///run/v.sock?db=1&password={MASK}"),
    ],
)
def test_urls_without_passwords(url: str, expected: str) -> None:
    assert shown_url(url) == expected


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:1", True),
        ("http://127.8.0.1:1", True),
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
        ("unix:/x", True),
        ("http://10.0.0.1:1", False),
        ("http://gpu.lan", False),
    ],
)
def test_what_an_address_means_elsewhere(url: str, local: bool) -> None:
    endpoint = parse_endpoint(url)
    assert is_local(endpoint) is local
    assert identity(endpoint, "box").startswith("box/") is local


def test_the_way_through_a_gate_is_shown() -> None:
    endpoint = Endpoint("127.0.0.1:1", 1, "127.0.0.1", gate=Gate("attic", 7000, "gpu"))
    assert str(endpoint) == "http://127.0.0.1:1 through attic:7000"
