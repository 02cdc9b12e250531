"""Listening sockets: addresses of every kind, and messages that say what to do."""

import socket
import stat
from pathlib import Path

import pytest

from proxy.listener import BACKLOG, ListenError, close_all, is_loopback, open_groups, open_sockets, shown, unix_socket


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


@pytest.mark.parametrize("listen", ["127.0.0.1:0", ":0"])
def test_a_group_for_each_process_shares_the_port(listen: str) -> None:
    groups = open_groups(listen, [], 3)
    try:
        by_family = {
            family: {each.getsockname()[1] for g in groups for each in g if each.family == family}
            for family in {each.family for each in groups[0]}
        }
        assert len(groups) == 3
        assert len({len(group) for group in groups}) == 1
        assert all(len(ports) == 1 for ports in by_family.values())
        with pytest.raises(ListenError, match="another program uses it"):
            open_groups(shown(groups[0]), [], 3)  # of the same user, and shared likewise
        with pytest.raises(ListenError, match="another program uses it"):
            open_sockets(shown(groups[0]), [])
    finally:
        for group in groups:
            close(group)


def test_the_kernel_spreads_connections_over_the_groups() -> None:
    groups = open_groups("127.0.0.1:0", [], 2)
    clients = []
    try:
        for _ in range(64):
            clients.append(socket.create_connection(groups[0][0].getsockname()))
        accepted = [0, 0]
        for number, [each] in enumerate(groups):
            with pytest.raises(BlockingIOError):
                while True:
                    each.accept()[0].close()
                    accepted[number] += 1
        assert sum(accepted) == 64
        assert min(accepted) > 0
    finally:
        close([*clients, *groups[0], *groups[1]])


def test_a_unix_socket_and_inherited_ones_are_one_group(tmp_path: Path) -> None:
    [[shared]] = open_groups(f"unix:{tmp_path}/http.sock", [], 4)
    assert open_groups("127.0.0.1:0", [shared], 4) == [[shared]]
    close_all([shared])
    assert (tmp_path / "http.sock").exists()


def test_only_who_made_a_unix_socket_removes_its_path(tmp_path: Path) -> None:
    opened = open_sockets(f"unix:{tmp_path}/http.sock", [])
    close_all(opened, remove=True)
    assert not (tmp_path / "http.sock").exists()
    assert BACKLOG >= 1024
