"""The embedded engine as a process: flags, failures, ends. Needs xllamacpp and the test model."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from proxy.backends import embedded
from proxy.backends.embedded import UnusableError
from tests.real_engine import KEY, RealEngine, connect, start_engine, status_of, stop_engine
from tests.wait import until_sync

COMMAND = [sys.executable, "-m", "proxy.backends.embedded"]


def refused(*flags: str) -> str:
    done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("slotgate embedded engine: error: ")
    return last.removeprefix("slotgate embedded engine: error: ")


def test_a_flag_that_it_does_not_know() -> None:
    assert refused("--colour") == "unrecognized arguments: --colour"


def test_no_model() -> None:
    assert refused("--port", "0") == "no model given; name a GGUF file with -m"


def test_a_model_that_is_not_there() -> None:
    assert refused("-m", "/no/such.gguf") == "cannot read the model /no/such.gguf: No such file or directory"


def test_a_model_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"PK\3\4")
    assert refused("-m", str(tmp_path / "a.gguf")) == f"{tmp_path / 'a.gguf'} is not a GGUF file"


@pytest.mark.real
def test_a_broken_model(smollm2: Path, tmp_path: Path) -> None:
    with smollm2.open("rb") as file:
        (tmp_path / "a.gguf").write_bytes(file.read(100_000))
    assert refused("-m", str(tmp_path / "a.gguf"), "--host", str(tmp_path / "a.sock")).startswith(
        "the engine did not start"
    )


def test_addresses_that_are_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UnusableError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
            embedded.clear_address("127.0.0.1", port)
    path = str(tmp_path / "a.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with pytest.raises(UnusableError, match="another process serves the socket"):
            embedded.clear_address(path, 0)


def test_a_stale_socket_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    assert path.exists()
    embedded.clear_address(str(path), 0)
    assert not path.exists()
    embedded.clear_address(str(path), 0)


def test_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one\n\n two \n")
    assert embedded.read_keys(path) == ["one", "two"]
    path.write_text("\n")
    with pytest.raises(UnusableError, match="is empty"):
        embedded.read_keys(path)
    with pytest.raises(UnusableError, match="cannot read the API key file"):
        embedded.read_keys(tmp_path / "none")


def test_devices_are_listed_as_llama_server_lists_them() -> None:
    pytest.importorskip("xllamacpp")
    done = subprocess.run([*COMMAND, "--list-devices"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Available devices:")
    real = (
        "Available devices:\n  CUDA0: NVIDIA H200 (143156 MiB, 142000 MiB free)\n  CUDA1: other (1 MiB, 1 MiB free)\n"
    )
    assert embedded.gpus_listed(real) == 2
    assert embedded.gpus_listed("Available devices:\n") == 0


def test_flags_become_parameters(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    key = tmp_path / "key"
    key.write_text(f"{KEY}\n")
    text = "-m /m.gguf -a one,two --host /s.sock -np 3 -c 6144 --no-kv-unified -b 256 -ub 128 -t 2 -tb 3 -ngl all "
    text += "-fa on "
    text += f"--cache-ram 64 --no-cache-idle-slots -ctk q8_0 --metrics --slots --slot-save-path {tmp_path} "
    text += f"--api-key-file {key} --pooling mean --no-jinja --temp 0.5 --seed 42 -fit off --no-warmup"
    params = embedded.parameters(embedded.make_parser().parse_args(text.split()))
    assert params.model_alias == {"one", "two"}
    assert (params.n_parallel, params.n_ctx, params.n_batch, params.n_ubatch) == (3, 6144, 256, 128)
    assert (params.kv_unified, params.cache_ram_mib, params.cache_idle_slots) == (False, 64, False)
    assert (params.cpuparams.n_threads, params.cpuparams_batch.n_threads) == (2, 3)
    assert (params.n_gpu_layers, params.fit_params, params.use_jinja, params.warmup) == (-2, False, False, False)
    assert (params.endpoint_metrics, params.endpoint_slots) == (True, True)
    assert params.slot_save_path == f"{tmp_path}/"
    assert params.api_keys == [KEY]
    assert params.cache_type_k.name == "GGML_TYPE_Q8_0"
    assert (params.sampling.temp, params.sampling.seed) == (0.5, 42)


def test_embedding_and_reranking_take_a_prompt_in_one_batch() -> None:
    pytest.importorskip("xllamacpp")
    params = embedded.parameters(
        embedded.make_parser().parse_args(["-m", "/m", "--embeddings", "-b", "1024", "-ub", "512"])
    )
    assert (params.embedding, params.n_batch, params.n_ubatch) == (True, 1024, 1024)
    params = embedded.parameters(embedded.make_parser().parse_args(["-m", "/m", "--reranking"]))
    assert (params.embedding, params.pooling_type.name) == (True, "LLAMA_POOLING_TYPE_RANK")


def ask(engine: RealEngine, path: str, content: Any = None) -> Any:
    connection = connect(engine.endpoint)
    try:
        body = None if content is None else json.dumps(content)
        connection.request("POST" if body else "GET", path, body, dict(engine.endpoint.headers))
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


@pytest.mark.real
def test_a_stranger_is_turned_away(real_engine: RealEngine) -> None:
    connection = connect(real_engine.endpoint)
    connection.request("GET", "/props")
    assert connection.getresponse().status == 401
    connection.close()
    for process in psutil.process_iter(["cmdline"]):
        assert KEY not in " ".join(process.info["cmdline"] or ())


@pytest.mark.real
def test_it_has_what_it_was_started_with(real_engine: RealEngine) -> None:
    props = ask(real_engine, "/props")
    assert props["total_slots"] == real_engine.slots
    assert props["default_generation_settings"]["n_ctx"] == real_engine.slot_context_tokens
    answer = ask(real_engine, "/completion", {"prompt": "One, two, three,", "n_predict": 4})
    assert answer["tokens_predicted"] == 4


@pytest.mark.real
def test_saved_slots_are_where_they_should_be(real_engine: RealEngine) -> None:
    ask(real_engine, "/completion", {"prompt": "Once upon a time", "n_predict": 1, "id_slot": 0})
    saved = ask(real_engine, "/slots/0?action=save", {"filename": "one.bin"})
    assert saved["n_saved"] > 0
    assert (real_engine.spec.log_path.parent / "slots" / "one.bin").stat().st_size == saved["n_written"]


@pytest.mark.real
def test_sigterm_ends_it_while_it_is_busy(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("e")
    engine = start_engine(directory)
    connection = connect(engine.endpoint)
    body = json.dumps({"prompt": "Once upon a time", "n_predict": 2000, "stream": True, "ignore_eos": True})
    connection.request("POST", "/completion", body, dict(engine.endpoint.headers))
    reply = connection.getresponse()
    assert reply.readline().startswith(b"data:")
    until_sync(lambda: "engine: serving" in engine.spec.log_path.read_text(), "it has taken over SIGTERM")
    engine.keeper.send_signal(signal.SIGTERM)  # its client stays connected, as the one of a hung proxy would
    assert engine.keeper.wait(timeout=4) == 0  # less than the grace: it was not killed
    connection.close()
    assert engine.endpoint.unix_path is not None
    assert not Path(engine.endpoint.unix_path).exists()
    assert engine.keeper.stdin is not None
    engine.keeper.stdin.close()


@pytest.mark.real
def test_after_kill_9_it_starts_again_on_its_stale_socket(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("e")
    engine = start_engine(directory)
    engine.keeper.kill()
    engine.keeper.wait()
    until_sync(lambda: status_of(engine.endpoint) == 0, "the engine died with its keeper")
    assert Path(engine.endpoint.unix_path or "").exists()
    (directory / "slots").rmdir()
    again = start_engine(directory)
    stop_engine(again)
    assert engine.keeper.stdin is not None
    engine.keeper.stdin.close()
