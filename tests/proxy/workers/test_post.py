"""A worker's end of the line: orders in order, and what happens when nobody gives any."""

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest

from proxy.workers import post as module
from proxy.workers.orders import Accept, Alive, Orders, Ready, Retire, ToWorker, from_worker, line
from proxy.workers.post import OrdersMissing, Post
from tests.wait import until


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def orders(*sockets: list[int]) -> Orders:
    return Orders(1, {}, "/s", "/s/a.sock", list(sockets), 0)


async def test_orders_come_in_their_order(ends: tuple[socket.socket, socket.socket]) -> None:
    main, theirs = ends
    main.sendall(line(orders()) + line(Accept([1])))
    ended: list[int] = []
    post = Post(theirs, ended.append)
    heard: list[ToWorker] = []
    gone = asyncio.Event()
    post.start(heard.append, gone.set)
    main.sendall(line(Retire(1.0)))
    await until(lambda: len(heard) == 2, "two orders")
    assert heard == [Accept([1]), Retire(1.0)]
    assert not gone.is_set()
    post.tell(Ready(warm=True))
    post.keep_telling(lambda: Alive(running=3))
    told = await asyncio.to_thread(main.recv, 4096)
    while told.count(b"\n") < 2:
        told += await asyncio.to_thread(main.recv, 4096)
    assert [from_worker.decode(text) for text in told.splitlines()] == [Ready(warm=True), Alive(running=3)]
    await post.close()


async def test_without_the_main_process_it_ends_even_if_nothing_else_does(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_WORDS_S", 0.05)
    main, theirs = ends
    main.sendall(line(orders()))
    ended: list[int] = []
    post = Post(theirs, ended.append)
    gone = asyncio.Event()
    post.start(lambda _order: None, gone.set)
    main.close()
    await until(lambda: ended == [1], "the process is ended")
    assert gone.is_set()
    post.tell(Ready(warm=True))  # nobody listens; nothing is raised


async def test_an_order_that_is_not_understood_ends_it(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_WORDS_S", 0.05)
    main, theirs = ends
    main.sendall(line(orders()) + b'{"type":"dance"}\n')
    ended: list[int] = []
    gone = asyncio.Event()
    Post(theirs, ended.append).start(lambda _order: None, gone.set)
    await until(lambda: ended == [1] and gone.is_set(), "the process is ended")


@pytest.mark.parametrize("first", [b"", b"{}\n", b'{"type":"accept","groups":[]}\n', b"\xff\n"])
def test_orders_must_come_first(ends: tuple[socket.socket, socket.socket], first: bytes) -> None:
    main, theirs = ends
    main.sendall(first)
    main.shutdown(socket.SHUT_WR)
    with pytest.raises(OrdersMissing):
        Post(theirs)


def test_sockets_are_taken_over_and_passed_on_to_nobody(ends: tuple[socket.socket, socket.socket]) -> None:
    main, theirs = ends
    with socket.create_server(("127.0.0.1", 0)) as listening:
        inherited = os.dup(listening.fileno())
        os.set_inheritable(inherited, True)
        main.sendall(line(orders([inherited])))
        [[taken]] = Post(theirs).groups
        with taken:
            assert taken.getsockname() == listening.getsockname()
            assert not taken.get_inheritable()
