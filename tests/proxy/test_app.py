"""Start and stop of the whole proxy: clear messages, order, signals."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.proxy.box import MODEL, box, emulated
from tests.slotgate_process import slotgate
from tests.wait import until, until_sync


def config(directory: Path, url: str, listen: str = "127.0.0.1:0", more: str = "") -> str:
    state = directory / "state"
    return (
        f'listen = "{listen}"\nstate_dir = "{state}"\nadmin_socket = "{state}/admin.sock"\n'
        f'[[backends]]\nname = "gpu0"\nurl = "{url}"\n{more}'
    )


def test_a_taken_port_is_one_clear_message_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with slotgate(tmp_path, config(tmp_path, "http://127.0.0.1:1", listen)) as running:
            assert running.process.wait(20) == 1

    text = running.log.read_text()
    assert f"cannot listen on {listen}" in text
    assert "--listen" in text
    assert "Traceback" not in text


def test_a_wrong_option_ends_with_status_2_and_names_the_right_one(tmp_path: Path) -> None:
    with slotgate(tmp_path, "listne = '127.0.0.1:0'\n") as running:
        assert running.process.wait(20) == 2

    assert "listen" in running.log.read_text()


def test_an_unreachable_store_is_told_and_requests_go_on(tmp_path: Path) -> None:
    more = '[store]\nurl = "redis://:secret@127.0.0.1:1"\n'
    with slotgate(tmp_path, config(tmp_path, "http://127.0.0.1:1", more=more)) as running:
        until_sync(lambda: bool(running.backends()), "the proxy answers")
        assert running.status().store.up is False
        assert httpx.get(f"{running.url}/").text == "Ollama is running"

    assert "secret" not in running.log.read_text()


def test_sighup_reloads_limits_and_refuses_nonsense(tmp_path: Path) -> None:
    text = config(tmp_path, "http://127.0.0.1:1")
    with slotgate(tmp_path, text) as running:
        until_sync(lambda: bool(running.backends()), "the proxy answers")
        big = b'{"model": "x", "prompt": "' + b"y" * 2000 + b'"}'
        file = tmp_path / "config.toml"
        file.write_text(f"{text}[limits]\nmax_body_bytes = 'many'\n")
        os.kill(running.process.pid, signal.SIGHUP)
        until_sync(lambda: "configuration not reloaded" in running.log.read_text(), "the error is logged")
        file.write_text(f"{text}[limits]\nmax_body_bytes = 1000\n")
        os.kill(running.process.pid, signal.SIGHUP)
        until_sync(lambda: "configuration reloaded" in running.log.read_text(), "it is reloaded")

        assert httpx.post(f"{running.url}/api/generate", content=big).status_code == 413


async def test_a_second_stop_ends_at_once(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated(speed=0.01)]) as running:
        body = {"model": MODEL, "prompt": "x"}
        asked = asyncio.ensure_future(running.client.post("/api/chat", json=body | {"messages": []}))
        await asked
        stream = asyncio.ensure_future(running.client.post("/api/generate", json=body))
        await until(lambda: running.app.requests == 1, "a request runs")
        running.app.stop()
        running.app.stop()
        with pytest.raises(httpx.HTTPError):
            await stream


async def test_requests_before_any_backend_answered_wait_for_one(tmp_path: Path) -> None:
    engine = emulated(load_s=0.5, speed=1.0)
    async with box(tmp_path, [engine], ready=False) as running:
        answer = await running.generate()

    assert answer.status_code == 200
