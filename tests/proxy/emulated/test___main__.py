"""The command line of the emulated engine, as a process of its own."""

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from proxy.emulated.__main__ import build_parser, main, make_engine
from scheduler.simulation.step_times import PRESETS
from tests.proxy.emulated.support import is_alive
from tests.real_engine import UnixConnection
from tests.wait import until_sync


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "proxy.emulated", *arguments]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield started
    finally:
        if started.poll() is None:
            os.kill(started.pid, signal.SIGKILL)
        started.wait()


def status(path: Path, method: str = "GET", url: str = "/health", body: bytes | None = None) -> int:
    connection = UnixConnection(str(path))
    try:
        connection.request(method, url, body)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


@pytest.mark.parametrize("loop", [[], ["--uvloop"]])
def test_it_serves_until_sigterm(tmp_path: Path, loop: list[str]) -> None:
    path = tmp_path / "engine.sock"
    address = tmp_path / "address"
    with process("--listen", f"unix:{path}", "--slots", "2", "--address-file", str(address), *loop) as started:
        until_sync(address.exists, "it tells its address")
        assert address.read_text() == f"unix:{path}"
        assert status(path) == 200
        assert status(path, "POST", "/completion", b'{"prompt": "a", "n_predict": 2}') == 200
        started.terminate()
        assert started.wait(10) == 0
    assert not path.exists()


def test_told_to_die_it_dies(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with process("--listen", f"unix:{path}", "--faults") as started:
        until_sync(lambda: status(path) == 200, "it answers")
        assert status(path, "POST", "/emulated/faults", b'{"kind": "kill"}') == 0
        assert started.wait(10) == -signal.SIGKILL


def test_options_reach_the_engine(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    arguments = build_parser().parse_args(
        [
            *("--api", "ollama", "--model", "a", "--model", "b", "--capabilities", "completion,embedding"),
            *("--speed", "inf", "--answer-tokens", "3-9", "--api-key-file", str(keys), "--card", "h200"),
            *("--host-cache-tokens", "5000", "--copy-idle-slots", "--kv-unified", "--batch", "64"),
        ]
    )
    options = make_engine(arguments).options
    assert [model.name for model in options.models] == ["a", "b"]
    assert options.models[0].capabilities == ("completion", "embedding")
    assert (options.answer_tokens, options.api_keys, options.speed) == ((3, 9), ("one", "two"), float("inf"))
    model = options.settings(slots=2, context=100)
    assert (model.slots, model.context, model.batch, model.times) == (2, 100, 64, PRESETS["h200"])
    assert (model.host_tokens, model.copies_idle, model.unified) == (5000, True, True)


@pytest.mark.parametrize("wrong", [["--speed", "0"], ["--answer-tokens", "0"], ["--api", "other"], ["--card", "3dfx"]])
def test_wrong_options_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(wrong)
    assert wrong[0] in capsys.readouterr().err


def test_options_of_an_ollama_reach_the_engine(tmp_path: Path) -> None:
    arguments = build_parser().parse_args(
        [
            *("--api", "ollama", "--model", "a,family=qwen35,num_ctx=9", "--registry", "m,size=5"),
            *("--registry-speed", "7", "--children", "--ps-stall", "2", "--memory", "2", "--cloud"),
            *("--models-dir", str(tmp_path)),
        ]
    )
    options = make_engine(arguments).options
    assert (options.models[0].family, options.models[0].settings) == ("qwen35", {"num_ctx": 9})
    assert (options.registry[0].size_bytes, options.registry_bytes_per_s) == (5, 7)
    assert (options.children, options.ps_stall_s, options.memory_bytes, options.cloud) == (True, 2, 2**31, True)
    bare = build_parser().parse_args(["--api", "ollama", "--models-dir", str(tmp_path)])
    assert make_engine(bare).options.models == ()  # what is there already


def test_in_the_place_of_ollama_the_environment_wins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:12345")
    monkeypatch.setenv("OLLAMA_NUM_PARALLEL", "3")
    command = ["--api", "ollama", "--slots", "9", "--load", "5", "--as-ollama", "serve"]
    engine = make_engine(build_parser().parse_args(command))
    assert (engine.url, engine.options.slots, engine.options.load_s) == ("http://127.0.0.1:12345", 3, 5)
    assert main(["--as-ollama", "--version"]) == 0
    assert capsys.readouterr().out == f"ollama version is {engine.options.version}\n"
    assert main(["--as-ollama", "list"]) == 1


@pytest.mark.parametrize(("number", "lives"), [(signal.SIGTERM, False), (signal.SIGKILL, True)])
def test_its_children_go_with_sigterm_and_live_on_after_sigkill(
    tmp_path: Path, number: signal.Signals, lives: bool
) -> None:
    path = tmp_path / "engine.sock"
    with process("--api", "ollama", "--listen", f"unix:{path}", "--children", "--faults") as started:
        until_sync(lambda: status(path, "GET", "/") == 200, "it answers")
        assert status(path, "POST", "/api/generate", b'{"model": "emulated"}') == 200
        connection = UnixConnection(str(path))
        connection.request("GET", "/emulated/state")
        (resident,) = orjson.loads(connection.getresponse().read())["resident"]
        started.send_signal(number)
        started.wait(10)
    pid = resident["pid"]
    if lives:
        assert is_alive(pid)
        program = Path(Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0])
        until_sync(lambda: not program.parent.exists(), "it has begun and taken its link away")
        os.kill(pid, signal.SIGKILL)
    until_sync(lambda: not is_alive(pid), "the child is gone")


def test_an_address_that_cannot_be_had_ends_it() -> None:
    assert main(["--listen", "unix:/no/such/directory/engine.sock"]) == 1
    assert main(["--api-key-file", "/no/such/file"]) == 1
