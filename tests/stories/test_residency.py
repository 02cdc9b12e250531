"""Ollamas behind slotgate processes: clients with all kinds of options share what is loaded; operators have a say."""

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from proxy.emulated.emulated_engine import EmulatedEngine
from tests.proxy.store.store_process import StoreProcess
from tests.slotgate_process import SlotgateProcess, slotgate
from tests.wait import until

MODEL = "llama"
USER = [{"role": "user", "content": "Tell me a story."}]


def config(state_dir: Path, engines: Sequence[EmulatedEngine], store_url: str = "", more: str = "") -> str:
    store = f'[store]\nurl = "{store_url}"\n' if store_url else ""
    backends = "".join(
        f'[[backends]]\nname = "gpu{number}"\nurl = "{engine.url}"\nslots = 2\n{more}'
        for number, engine in enumerate(engines)
    )
    return (
        f'listen = "127.0.0.1:0"\nstate_dir = "{state_dir}"\nadmin_socket = "{state_dir}/admin.sock"\n{store}{backends}'
    )


@contextlib.asynccontextmanager
async def ollamas(count: int, **values: Any) -> AsyncIterator[list[EmulatedEngine]]:
    async with contextlib.AsyncExitStack() as stack:
        settings: dict[str, Any] = {"models": [MODEL, "other"], "slots": 2, "context": 4096, "speed": 50.0} | values
        yield [await stack.enter_async_context(EmulatedEngine("ollama", **settings)) for _ in range(count)]


@contextlib.asynccontextmanager
async def running(directory: Path, text: str, backends: int) -> AsyncIterator[SlotgateProcess]:
    """A slotgate process; engines in this process' loop go on meanwhile."""
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(slotgate(directory, text))
        try:
            await asyncio.to_thread(process.wait_ready, backends)
            yield process
        finally:
            await asyncio.to_thread(stack.close)


@contextlib.asynccontextmanager
async def two_proxies(tmp_path: Path, engines: Sequence[EmulatedEngine], more: str = "") -> AsyncIterator[list[str]]:
    """Two proxies of one fleet, both in front of all engines; their URLs."""
    with TemporaryDirectory(prefix="sg-") as name:
        store = StoreProcess("valkey", Path(name))
        store.start()
        try:
            async with contextlib.AsyncExitStack() as stack:
                urls = []
                for proxy in ("one", "two"):
                    (tmp_path / proxy).mkdir()
                    text = config(tmp_path / proxy / "state", engines, store.url, more)
                    process = await stack.enter_async_context(running(tmp_path / proxy, text, len(engines)))
                    urls.append(await asyncio.to_thread(getattr, process, "url"))
                yield urls
        finally:
            store.stop()


def wishes(number: int) -> tuple[str, dict[str, Any]]:
    """What the clients of a mixed crowd send, one after the other."""
    contexts: list[dict[str, Any]] = [{}, {"num_ctx": 2048}, {"num_ctx": 4096.0}, {"num_ctx": 3000, "num_gpu": 33}]
    options = {"num_predict": 3, **contexts[number % len(contexts)]}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("/api/chat", {"messages": USER, "options": options}),
        ("/v1/chat/completions", {"messages": USER, "max_tokens": 3}),
        ("/api/generate", {"prompt": f"Story {number}", "options": options, "stream": False}),
        ("/v1/messages", {"messages": USER, "max_tokens": 3}),
    ]
    path, body = kinds[(number // len(contexts)) % len(kinds)]
    return path, {"model": MODEL, **body}


async def crowd(urls: Sequence[str], requests: int, at_once: int = 8, wish: Any = wishes) -> list[str]:
    """Send so many requests to the proxies by turns; returns what went wrong."""
    problems: list[str] = []
    numbers = itertools.count()
    async with httpx.AsyncClient(timeout=60) as client:

        async def one() -> None:
            while (number := next(numbers)) < requests:
                path, body = wish(number)
                answer = await client.post(urls[number % len(urls)] + path, json=body)
                if answer.status_code != 200:
                    problems.append(f"{path}: {answer.status_code} {answer.text}")

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(one())
    return problems


@pytest.mark.parametrize("known", ["context_tokens = 4096\n", ""])
async def test_clients_with_all_kinds_of_options_share_what_is_loaded(tmp_path: Path, known: str) -> None:
    """Whether slotgate was told the engines' default context or has to learn it."""
    async with ollamas(2, load_s=5.0) as engines, two_proxies(tmp_path, engines, known) as urls:
        problems = await crowd(urls, 64)
        warm = [engine.loads.loads for engine in engines]
        problems += await crowd(urls, 240)

        assert problems == []
        assert [engine.loads.loads for engine in engines] == warm
        assert [engine.loads.reloads for engine in engines] == [0, 0]
        assert all(loads <= 1 for loads in warm)
        assert {each.context for engine in engines for each in engine.residents} == {4096}


async def test_two_proxies_never_load_at_one_backend_at_once(tmp_path: Path) -> None:
    async with ollamas(1, load_s=40.0) as [engine], two_proxies(tmp_path, [engine]) as urls:
        assert await crowd(urls, 16, at_once=16) == []

        assert (engine.loads.loads, engine.loads.reloads, engine.loads.aborted) == (1, 0, 0)
        preloads = [
            seen.fields for seen in engine.requests if seen.path == "/api/generate" and "prompt" not in seen.fields
        ]
        assert len(preloads) == 1


async def test_a_client_that_leaves_does_not_abort_the_load(tmp_path: Path) -> None:
    async with ollamas(1, load_s=50.0) as engines:
        [engine] = engines
        (tmp_path / "box").mkdir()
        async with running(tmp_path / "box", config(tmp_path / "box" / "state", engines), 1) as proxy:
            async with httpx.AsyncClient(base_url=await asyncio.to_thread(getattr, proxy, "url"), timeout=60) as client:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await client.post("/api/generate", json={"model": MODEL, "prompt": "x"})
                body = {"model": MODEL, "prompt": "x", "stream": False}
                assert (await client.post("/api/generate", json=body)).status_code == 200

            assert (engine.loads.loads, engine.loads.aborted) == (1, 0)


async def command(proxy: SlotgateProcess, *arguments: str) -> tuple[int | None, str, str]:
    """Run `slotgate ARGUMENTS` beside a proxy."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", *arguments, f"--socket={proxy.state_dir}/admin.sock"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_operators_load_pin_and_unload_and_a_pin_survives_a_restart(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    text_for = tmp_path / "box" / "state"
    async with ollamas(2, load_s=10.0) as engines:
        async with running(tmp_path / "box", config(text_for, engines), 2) as proxy:
            status, out, err = await command(proxy, "load", MODEL, "--backend", "gpu1", "--num-ctx", "8192")
            assert (status, err) == (0, f"loading {MODEL} on gpu1\n")
            assert out.startswith(f"{MODEL} is loaded on gpu1 with a context of 8192 in ")
            assert [each.context for each in engines[1].residents] == [8192]
            assert await command(proxy, "unload", MODEL) == (
                0,
                f"{MODEL} is unloaded from gpu1 as soon as nothing runs on it\n",
                "",
            )
            await until(lambda: not engines[1].residents, "it is unloaded")
            status, _, err = await command(proxy, "pin", "llam")
            assert (status, err) == (1, "error: no Ollama has a model 'llam'\ndid you mean llama?\n")
            assert (await command(proxy, "pin", MODEL, "--backend", "gpu0"))[0] == 0
            await until(lambda: engines[0].residents, "the pinned model is loaded")
        for engine in engines:
            await engine.stop()
            await engine.start()
        assert engines[0].residents == []
        async with running(tmp_path / "box", config(text_for, engines), 2) as proxy:
            await until(lambda: engines[0].residents, "the pinned model is loaded again", 30)
            assert engines[0].residents[0].keep_alive_s < 0
            assert (await command(proxy, "unpin", MODEL))[0] == 0
            shown = (await command(proxy, "ps"))[1]
            assert "gpu0" in shown
            assert "pinned" not in shown
