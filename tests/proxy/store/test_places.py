"""From a URL to the process to connect to; real Sentinels and clusters are in test_sentinel and test_cluster."""

import asyncio

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError

from proxy.store.places import Places


@pytest.mark.parametrize(
    "url",
    ["redis://u:p@h:1/2?x=1", "rediss://h", "unix:///s.sock?db=0", "unix://:p@/s.sock"],
)
async def test_plain_urls_are_used_as_they_are(url: str) -> None:
    assert await Places(url).find() == url


@pytest.mark.parametrize(
    ("url", "sentinels", "then"),
    [
        ("redis+sentinel://h1:1,h2/fleet", [("h1", 1), ("h2", 26379)], "redis://m:9/"),
        ("redis+sentinel://u:p%40@h1/fleet/3", [("h1", 26379)], "redis://u:p%40@m:9/3"),
        ("rediss+sentinel://:p@[::1]:5/fleet", [("::1", 5)], "rediss://:p@m:9/"),
        (
            "redis+sentinel://h/f?sentinel_password=x&ssl_cert_reqs=none",
            [("h", 26379)],
            "redis://m:9/?ssl_cert_reqs=none",
        ),
    ],
)
def test_sentinel_urls_are_read(url: str, sentinels: list[tuple[str, int]], then: str) -> None:
    places = Places(url)

    assert places._sentinels == sentinels
    assert places._at("m", 9) == then


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://h1:1",
        "redis+sentinel:///fleet",
        "redis+sentinel://h:x/fleet",
        "redis+sentinel://h:70000/fleet",
        "redis+sentinel://h,,g/fleet",
        "redis+sentinel://h/fleet/x",
    ],
)
def test_sentinel_urls_of_no_known_form_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="SERVICE"):
        Places(url)


@pytest.mark.parametrize(
    ("url", "to", "then"),
    [
        ("redis://u:p@h:1/0?x=1", "1 10.0.0.1:7", "redis://u:p@10.0.0.1:7/0?x=1"),
        ("rediss://h:1", "1 ::1:7", "rediss://[::1]:7"),
        ("redis://h:1", "1 :7", "redis://h:7"),
        ("unix://:p@/s.sock?db=0", "1 10.0.0.1:7", "redis://:p@10.0.0.1:7/"),
    ],
)
async def test_a_cluster_sends_on_with_the_same_login(url: str, to: str, then: str) -> None:
    places = Places(url)

    assert places.moved(MovedError(to))
    assert await places.find() == then
    places.forget()
    assert await places.find() == url


def test_a_cluster_that_names_no_host_is_not_followed_from_a_unix_socket() -> None:
    assert not Places("unix:///s.sock").moved(MovedError("1 :7"))


def test_the_password_is_not_shown() -> None:
    for url in ("redis://u:secret@h", "redis+sentinel://u:secret@h1,h2:1/f?sentinel_password=secret"):
        assert "secret" not in Places(url).shown


async def test_a_sentinel_that_does_not_answer_is_asked_once() -> None:
    """The next one may know; a library's own retries would take seconds."""
    asked = 0

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.close()

    listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    with pytest.raises(RedisConnectionError, match="2 of 2 did not answer"):
        await Places(f"redis+sentinel://127.0.0.1:{port},127.0.0.1:{port}/fleet").find()
    listener.close()

    assert asked == 2
