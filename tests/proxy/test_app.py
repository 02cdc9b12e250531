"""Start and stop of the whole proxy: clear messages, order, signals."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import httpx
import pytest

from proxy.app import App
from proxy.config import Config, resolve
from proxy.config_sources import LoadedConfig
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
        stream = asyncio.ensure_future(running.client.post("/api/generate", json=body | {"stream": False}))
        await until(lambda: running.app.requests == 1, "a request runs")
        running.app.stop()
        running.app.stop()
        answer = await stream

    assert answer.status_code == 503
    assert "shutting down" in answer.json()["error"]


async def test_requests_before_any_backend_answered_wait_for_one(tmp_path: Path) -> None:
    engine = emulated(load_s=0.5, speed=1.0)
    async with box(tmp_path, [engine], ready=False) as running:
        answer = await running.generate()

    assert answer.status_code == 200


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_stop_that_cuts_a_stream_tells_its_client(tmp_path: Path, version: str) -> None:
    async with box(tmp_path, [emulated(speed=0.05)], limits={"drain_s": 0.1}) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        body = b'{"model":"smol","prompt":"x"}'
        writer.write(
            b"POST /api/generate HTTP/%s\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
            % (version.encode(), len(body), body)
        )
        begun = await reader.readuntil(b'"done":false}\n')
        running.app.stop()
        rest = b""
        clean = True
        try:
            rest = await reader.read()
        except ConnectionResetError:
            clean = False
        writer.close()
        [ended] = await running.ended(1)

    assert ended.termination == "SD"
    assert not rest.endswith(b"0\r\n\r\n")
    assert b'"done":true' not in begun + rest
    if version == "1.1":
        assert b"shutting down" in rest
    else:
        assert not clean, "a clean end would look finished"


async def test_a_stop_tells_those_that_wait(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated(slots=1, speed=0.05)], limits={"drain_s": 0.1}) as running:
        first = asyncio.ensure_future(running.generate())
        await until(lambda: running.app.requests == 1, "a request runs")
        second = asyncio.ensure_future(running.generate())
        await until(lambda: running.app.requests == 2, "a request waits")
        running.app.stop()
        answers = await asyncio.gather(first, second)

    assert [answer.status_code for answer in answers] == [503, 503]
    assert all("shutting down" in answer.json()["error"] for answer in answers)


async def test_a_stop_while_starting_leaves_nothing(tmp_path: Path) -> None:
    made = Config.model_validate({"listen": "127.0.0.1:0", "state_dir": tmp_path / "state"})
    app = App(made, resolve(made, {}), None, lambda: LoadedConfig(made, {}))
    app.stop()

    await app.serve()

    assert not app.serving
    assert not (tmp_path / "state" / "admin.sock").exists()


async def test_open_bodies_are_bounded_together(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated(slots=1, speed=0.05)], limits={"max_open_bytes": 3000}) as running:
        first = asyncio.ensure_future(running.generate("x" * 2000))
        await until(lambda: running.app.requests == 1, "a request runs")
        refused = await running.generate("y" * 2000)
        first.cancel()

    assert refused.status_code == 503
    assert "too many large requests" in refused.json()["error"]


def test_an_expected_failure_logs_no_traceback_and_no_secret(tmp_path: Path) -> None:
    text = config(
        tmp_path, "http://127.0.0.1:1", more='api_key = "SEKRET"\n[store]\nurl = "redis://:SEKRET@127.0.0.1:1"\n'
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        text = text.replace("127.0.0.1:0", f"127.0.0.1:{taken.getsockname()[1]}")
        with slotgate(tmp_path, text) as running:
            assert running.process.wait(20) == 1

    lines = running.log.read_text()
    assert "cannot listen" in lines
    assert "SEKRET" not in lines
    assert "raceback" not in lines
    assert "exception" not in lines
