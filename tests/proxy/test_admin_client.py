"""The client against a stand-in on a real unix socket, and every way in which there is nobody to ask."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.admin_client import AdminClient, AdminError, NotRunning
from tests.proxy.admin_stand_in import (
    AdminStandIn,
    explain_answer,
    models_answer,
    policy_answer,
    ps_answer,
    status_answer,
)


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[AdminStandIn]:
    with AdminStandIn(tmp_path / "admin.sock") as running:
        yield running


@pytest.fixture
def client(stand_in: AdminStandIn) -> Iterator[AdminClient]:
    with AdminClient(stand_in.path) as open_client:
        yield open_client


def test_answers(client: AdminClient, stand_in: AdminStandIn) -> None:
    assert client.status() == status_answer()
    assert client.ps() == ps_answer()
    assert client.models() == models_answer()
    assert [request.cached_tokens for request in client.recent()] == [80]
    assert stand_in.asked == ["GET /status", "GET /ps", "GET /models", "GET /recent"]


def test_draining(client: AdminClient) -> None:
    assert client.drain("gpu-0").draining
    answer = client.undrain("gpu-0")
    assert (answer.name, answer.draining, answer.running) == ("gpu-0", False, 4)


def test_restarting(client: AdminClient, stand_in: AdminStandIn) -> None:
    answer = client.restart("gpu-0")
    assert (answer.name, answer.was, answer.running) == ("gpu-0", "ready", 5)
    assert stand_in.asked == ["POST /backends/gpu-0/restart"]
    with pytest.raises(AdminError, match="other-box is external"):
        client.restart("other-box")
    with pytest.raises(AdminError, match="did you mean gpu-0"):
        client.restart("gpu0")


def test_the_policy(client: AdminClient, stand_in: AdminStandIn) -> None:
    assert client.policy() == policy_answer()
    assert client.set_policy({"hold_s": "0.25"}) == stand_in.changed
    assert client.choose_preset("sticky") == stand_in.changed
    assert client.reset_policy() == client.reset_policy(["hold_s"])
    assert stand_in.asked == [
        "GET /policy", "POST /policy/set", "POST /policy/preset", "POST /policy/reset", "POST /policy/reset",
    ]  # fmt: skip
    assert stand_in.bodies == [{"set": {"hold_s": "0.25"}}, {"preset": "sticky"}, {"keys": []}, {"keys": ["hold_s"]}]
    stand_in.refusal = "hold_s: no\n  fix: this"
    with pytest.raises(AdminError, match=r"^hold_s: no\n  fix: this$"):
        client.set_policy({"hold_s": "x"})


def test_explaining(client: AdminClient, stand_in: AdminStandIn) -> None:
    assert client.explain("r-0") == explain_answer()
    with pytest.raises(AdminError, match="no such"):
        client.explain("../status")


@pytest.mark.parametrize(("name", "advice"), [("gpu0", "did you mean gpu-0?"), ("zzz/..", "known: gpu-0, other-box")])
def test_unknown_backends(client: AdminClient, name: str, advice: str) -> None:
    with pytest.raises(AdminError) as caught:
        client.drain(name)
    assert str(caught.value) == f"no such backend\n{advice}"


def test_somebody_else_at_the_socket(client: AdminClient, stand_in: AdminStandIn) -> None:
    stand_in.raw = b'{"hello": "world"}'
    with pytest.raises(AdminError, match="Is it another program, or another version"):
        client.status()


def test_a_proxy_that_hangs(stand_in: AdminStandIn) -> None:
    stand_in.hang = True
    with AdminClient(stand_in.path, timeout_s=0.2) as client, pytest.raises(AdminError, match="does not answer"):
        client.status()


def test_nobody_there(tmp_path: Path) -> None:
    for missing in (tmp_path / "admin.sock", tmp_path / "no" / "folder" / "admin.sock"):
        with AdminClient(missing) as client, pytest.raises(NotRunning) as caught:
            client.status()
        assert str(missing) in str(caught.value)
        assert "slotgate serve" in str(caught.value)


def test_a_socket_that_was_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with AdminClient(path) as client, pytest.raises(NotRunning, match="nothing listens at"):
        client.status()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may connect to any socket")
def test_a_socket_of_somebody_else(stand_in: AdminStandIn) -> None:
    stand_in.path.chmod(0)
    with AdminClient(stand_in.path) as client, pytest.raises(AdminError, match="permission denied"):
        client.status()


def test_a_connection_that_breaks(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with AdminClient(path, timeout_s=5) as client:

            def hang_up() -> None:
                connection, _ = listening.accept()
                connection.recv(1)
                connection.close()

            thread = threading.Thread(target=hang_up)
            thread.start()
            with pytest.raises(AdminError, match="closed the connection"):
                client.status()
            thread.join(5)
