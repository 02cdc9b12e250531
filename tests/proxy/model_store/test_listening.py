"""Hearing a change's progress at one's own pace."""

import msgspec

from proxy.model_store.grouping import ModelStore
from proxy.model_store.listening import Listener
from proxy.model_store.single import Outcome
from proxy.model_store.wishes import Change, Wish

WISH = Wish(Change.PULL, "m", {"model": "m"})
STORE = ModelStore("id", ("gpu0", "gpu1"))


async def test_a_slow_one_gets_the_last_of_each_bar() -> None:
    listener = Listener(WISH)
    listener.hear([("d1", b"1\n"), ("x", b"x\n")])
    listener.hear([(f"d{bar}", f"{bar}-{step}\n".encode()) for step in range(1000) for bar in (1, 2)])
    listener.end(Outcome())
    listener.end(Outcome(500, "too late"))

    assert [text async for text in listener.lines()] == [b"1-999\nx\n2-999\n"]
    assert (await listener.outcome()).ok


async def test_ticks_where_nothing_is_told() -> None:
    listener = Listener(WISH)
    lines = listener.lines(0.01)
    assert await anext(lines) == b""
    listener.hear([("a", b"a\n")])
    assert await anext(lines) == b"a\n"


def test_a_line_of_one_store_names_its_backends() -> None:
    told = Listener.detail(STORE, b'{"status":"pulling aa","digest":"sha256:aa","total":5,"completed":1,"secret":2}')
    assert told is not None
    assert told[0] == "id sha256:aa"
    assert msgspec.json.decode(told[1]) == {
        "store": "gpu0, gpu1", "status": "pulling aa", "digest": "sha256:aa", "total": 5, "completed": 1,
    }  # fmt: skip
    assert Listener.detail(STORE, b"[]") is None
    assert Listener.detail(STORE, b"\xff") is None
