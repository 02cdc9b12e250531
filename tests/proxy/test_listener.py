"""Listening sockets: addresses of every kind, and messages that say what to do."""

import socket
import stat
from pathlib import Path

import pytest

from proxy.listener import ListenError, is_loopback, open_sockets, shown, unix_socket


def close(opened: list[socket.socket]) -> None:
    for each in opened:
        each.close()


@pytest.mark.parametrize(("listen", "loopback"), [("127.0.0.1:0", True), ("[::1]:0", True), (":0", False)])
def test_tcp(listen: str, loopback: bool) -> None:
    opened = open_sockets(listen, [])
    try:
        assert all(is_loopback(each) for each in opened) is loopback
        assert int(shown(opened).rpartition(":")[2]) > 0
    finally:
        close(opened)


def test_unix_socket_left_by_a_killed_process_is_replaced(tmp_path: Path) -> None:
    listen = f"unix:{tmp_path}/http.sock"
    first = open_sockets(listen, [])
    with pytest.raises(ListenError, match="another program uses it"):
        open_sockets(listen, [])
    close(first)
    second = open_sockets(listen, [])
    try:
        assert shown(second) == listen
        assert is_loopback(second[0])
    finally:
        close(second)


def test_a_taken_port_says_what_to_do() -> None:
    opened = open_sockets("127.0.0.1:0", [])
    try:
        with pytest.raises(ListenError, match=r"an Ollama or another slotgate\?.*--listen"):
            open_sockets(shown(opened), [])
    finally:
        close(opened)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(ListenError, match="no such address"):
        open_sockets("192.0.2.1:0", [])


def test_inherited_sockets_take_the_address_s_place() -> None:
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        mine.listen()
        assert open_sockets("127.0.0.1:11434", [mine]) == [mine]
        assert mine.getblocking() is False


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    with pytest.raises(ListenError, match="no socket"):
        unix_socket(precious)
    with pytest.raises(ListenError, match="no socket"):
        unix_socket(tmp_path)

    assert precious.read_text() == "keep me"


def test_rights_of_a_unix_socket(tmp_path: Path) -> None:
    with unix_socket(tmp_path / "a.sock", 0o600):
        assert stat.S_IMODE((tmp_path / "a.sock").stat().st_mode) == 0o600
