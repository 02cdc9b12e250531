"""Several workers on one address, with real processes and signals: what holds when one of them dies or is replaced."""

import asyncio
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest

from proxy.admin_client import AdminClient, AdminError
from tests.proxy.box import emulated
from tests.wait import until
from tests.workers_rig import MODEL, Stream, WorkersRig, workers_rig

BODY = {"model": MODEL, "prompt": "Once", "stream": False, "options": {"num_predict": 2}}


async def ask(address: tuple[str, int]) -> int:
    """One request over a connection of its own; its status."""
    async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}", timeout=30) as client:
        return (await client.post("/api/generate", json=BODY)).status_code


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def begun(streams: list[Stream]) -> None:
    await asyncio.gather(*(stream.begun.wait() for stream in streams))


def problems(streams: list[Stream]) -> list[str]:
    return [stream.problem for stream in streams if not stream.complete]


async def test_all_of_them_answer_on_one_port(tmp_path: Path) -> None:
    async with workers_rig(tmp_path, [emulated(slots=8)], workers=3) as rig:
        address = await rig.address()

        async def all_served() -> bool:
            assert set(await asyncio.gather(*(ask(address) for _ in range(10)))) == {200}
            return len({line.get("worker") for line in rig.lines() if line["event"] == "request"}) == 3

        await until(all_served, "each worker answered a request", 30)
        status = await rig.status()

    assert [worker.number for worker in status.workers] == [1, 2, 3]
    assert len({worker.pid for worker in status.workers} | {rig.process.pid}) == 4
    assert rig.process.returncode == 0


async def test_one_that_is_killed_is_replaced_and_the_others_go_on(tmp_path: Path) -> None:
    async with workers_rig(tmp_path, [emulated("ollama", slots=64, speed=0.3)], workers=2) as rig:
        address = await rig.address()
        before = await rig.serving()
        streams = [Stream() for _ in range(16)]
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(stream.run(*address, 60))
            await begun(streams)
            os.kill(before[1], signal.SIGKILL)
            # New connections are all answered, those included that the kernel gives to the dead one's socket.
            after = await asyncio.gather(*(ask(address) for _ in range(20)))
        await until(lambda: _replaced(rig, before), "the killed one is replaced", 30)
        workers = await rig.workers()

    cut = [stream for stream in streams if not stream.complete]
    assert 0 < len(cut) < len(streams), "those of the killed one break, and no others"
    assert all("status" not in stream.problem for stream in cut)
    assert set(after) == {200}
    assert [(worker.number, worker.restarts) for worker in workers] == [(1, 1), (2, 0)]


async def _replaced(rig: WorkersRig, before: dict[int, int]) -> bool:
    now = await rig.serving()
    return now.keys() == before.keys() and now[1] != before[1] and now[2] == before[2]


async def test_one_that_somebody_ends_loses_nothing(tmp_path: Path) -> None:
    async with workers_rig(tmp_path, [emulated("ollama", slots=64, speed=0.3)], workers=2) as rig:
        address = await rig.address()
        before = await rig.serving()
        streams = [Stream() for _ in range(16)]
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(stream.run(*address, 100))
            await begun(streams)
            os.kill(before[1], signal.SIGTERM)
            await until(lambda: _replaced(rig, before), "another one serves in its place while it drains", 30)
            assert set(await asyncio.gather(*(ask(address) for _ in range(20)))) == {200}

    assert problems(streams) == []


async def test_none_outlives_the_main_process(tmp_path: Path) -> None:
    async with workers_rig(tmp_path, [emulated("ollama", slots=64, speed=0.1)], workers=2) as rig:
        address = await rig.address()
        pids = list((await rig.serving()).values())
        streams = [Stream() for _ in range(4)]
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(stream.run(*address, 1000))
            await begun(streams)
            rig.process.kill()
            await until(lambda: not any(map(lives, pids)), "the workers end", 20)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)

    assert all("shutting down" in stream.problem for stream in streams)
    assert not list(rig.state_dir.glob("worker-*"))
    async with workers_rig(tmp_path, [emulated(slots=8)], workers=2) as rig:  # the same directory
        assert await ask(await rig.address()) == 200


async def test_rolling_restarts_under_streams_lose_nothing(tmp_path: Path) -> None:
    async with workers_rig(tmp_path, [emulated("ollama", slots=64, speed=1.0) for _ in range(2)], workers=2) as rig:
        address = await rig.address()
        ended: list[Stream] = []
        statuses: list[int] = []
        done = asyncio.Event()

        async def keep_streaming() -> None:
            while not done.is_set():
                stream = Stream()
                ended.append(stream)
                await stream.run(*address, 40)

        async def keep_asking() -> None:
            while not done.is_set():
                statuses.append(await ask(address))

        async with asyncio.TaskGroup() as group:
            for _ in range(40):
                group.create_task(keep_streaming())
            group.create_task(keep_asking())
            pids = [await rig.serving()]
            for _ in range(3):
                answer = await rig.restarted()
                assert (answer.replaced, answer.problem) == (2, "")
                pids.append(await rig.serving())
            done.set()

    assert len({pid for each in pids for pid in each.values()}) == 8
    assert problems(ended) == []
    assert len(ended) > 40, "streams began before, during and after"
    assert set(statuses) == {200}
    assert not [line for line in rig.lines() if line["level"] == "error"]


async def test_an_idle_connection_outlives_its_worker_s_restart_for_one_more_request(tmp_path: Path) -> None:
    async with workers_rig(tmp_path, [emulated(slots=8)], workers=2) as rig:
        host, port = await rig.address()
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
            assert (await client.post("/api/generate", json=BODY)).status_code == 200
            await rig.restarted()
            last = await client.post("/api/generate", json=BODY)
            await until(lambda: _none_retires(rig), "the old worker ends", 20)
            assert (await client.post("/api/generate", json=BODY)).status_code == 200

    assert last.status_code == 200
    assert last.headers["Connection"] == "close"


async def _none_retires(rig: WorkersRig) -> bool:
    return not [worker for worker in await rig.workers() if worker.state == "retiring"]


async def test_an_old_worker_ends_in_the_end(tmp_path: Path) -> None:
    more = "[limits]\nretire_s = 0.2\ndrain_s = 0.2\n"
    async with workers_rig(tmp_path, [emulated(slots=8, speed=0.1)], workers=2, more=more) as rig:
        address = await rig.address()
        stream = Stream()
        async with asyncio.TaskGroup() as group:
            group.create_task(stream.run(*address, 1000))
            await begun([stream])
            await rig.restarted()
        await until(lambda: _none_retires(rig), "the old workers end", 20)

    assert "shutting down" in stream.problem


async def test_signals_for_the_main_process_reach_all(tmp_path: Path) -> None:
    async with workers_rig(tmp_path, [emulated(slots=8)], workers=2) as rig:
        address = await rig.address()
        file = tmp_path / "config.toml"
        file.write_text(file.read_text() + "[limits]\nmax_body_bytes = 10\n")
        rig.process.send_signal(signal.SIGHUP)
        reloaded = {"event": "configuration reloaded"}
        await until(
            lambda: sum(line.items() >= reloaded.items() for line in rig.lines()) == 3, "main and workers reload", 20
        )
        assert set(await asyncio.gather(*(ask(address) for _ in range(10)))) == {413}
        before = await rig.serving()
        rig.process.send_signal(signal.SIGUSR2)

        async def replaced() -> bool:
            now = await rig.serving()
            return now.keys() == before.keys() and not set(now.values()) & set(before.values())

        await until(replaced, "all are replaced", 30)
        assert await ask(address) == 413, "what was reloaded holds for the new ones too"


async def test_a_stop_drains_all(tmp_path: Path) -> None:
    async with workers_rig(tmp_path, [emulated("ollama", slots=64, speed=1.0)], workers=2) as rig:
        address = await rig.address()
        streams = [Stream() for _ in range(10)]
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(stream.run(*address, 60))
            await begun(streams)
            rig.process.terminate()
            await rig.process.wait()

    assert problems(streams) == []
    assert rig.process.returncode == 0
    assert not list(rig.state_dir.glob("*.sock"))


async def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    async with workers_rig(tmp_path, [emulated("ollama", slots=64, speed=0.1)], workers=2) as rig:
        address = await rig.address()
        streams = [Stream() for _ in range(6)]
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(stream.run(*address, 5000))
            await begun(streams)
            rig.process.terminate()
            await until(lambda: "stopping" in rig.log.read_text(), "it stops")
            rig.process.terminate()

    assert all("shutting down" in stream.problem for stream in streams)


async def test_the_admin_socket_speaks_for_all(tmp_path: Path) -> None:
    async with workers_rig(tmp_path, [emulated("ollama", slots=64, speed=0.5)], workers=2) as rig:
        address = await rig.address()
        streams = [Stream() for _ in range(12)]
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(stream.run(*address, 200))
            await begun(streams)
            status = await rig.status()
            ps = await rig.ask(rig.admin.ps)
        recent = await rig.ask(rig.admin.recent)
        explained = [await rig.ask(rig.admin.explain, request.id) for request in recent]
        with pytest.raises(AdminError, match="nothing is known of request nope"):
            await rig.ask(rig.admin.explain, "nope")
        changed = await rig.ask(rig.admin.set_policy, {"hold_s": 0.25})
        for worker in await rig.workers():
            with AdminClient(rig.state_dir / f"worker-{worker.number}.{worker.pid}.sock") as admin:
                await until(partial(_has_policy, rig, admin, changed.version), f"worker {worker.number} hears of it")

    assert problems(streams) == []
    assert status.running == 12
    assert (status.backends[0].running, status.backends[0].elsewhere) == (12, 0)
    assert len(ps.requests) == 12
    assert len(recent) == 12
    assert [answer.id for answer in explained] == [request.id for request in recent]


async def test_those_that_wait_are_counted_once(tmp_path: Path) -> None:
    async with workers_rig(tmp_path, [emulated("ollama", slots=2, speed=0.2)], workers=2, slots=2) as rig:
        address = await rig.address()
        streams = [Stream() for _ in range(8)]
        tasks = [asyncio.ensure_future(stream.run(*address, 100)) for stream in streams]

        async def counted() -> bool:
            status, ps = await rig.status(), await rig.ask(rig.admin.ps)
            states = sorted(request.state for request in ps.requests)
            return (status.running, status.waiting, status.backends[0].running, status.backends[0].elsewhere) == (
                2,
                6,
                2,
                0,
            ) and states == ["running"] * 2 + ["waiting"] * 6

        await until(counted, "two run and six wait", 20)
        await asyncio.gather(*tasks)

    assert problems(streams) == []


async def _has_policy(rig: WorkersRig, admin: AdminClient, version: int) -> bool:
    return (await rig.ask(admin.policy)).version == version


async def test_they_share_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    async with workers_rig(tmp_path, [emulated(slots=8)], workers=2, listen=f"unix:{path}") as rig:
        await rig.restarted()
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client:
            answers = await asyncio.gather(*(client.post("/api/generate", json=BODY) for _ in range(8)))

    assert {answer.status_code for answer in answers} == {200}
    assert not path.exists()


async def test_a_port_that_another_slotgate_has_is_not_shared_with_it(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with workers_rig(tmp_path / "one", [emulated()], workers=2) as rig:
        _, port = await rig.address()
        with pytest.raises(AssertionError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with workers_rig(tmp_path / "two", [emulated()], workers=2, listen=f"127.0.0.1:{port}"):
                pass


async def test_systemd_hears_the_main_process_alone(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        async with workers_rig(tmp_path, [emulated()], workers=2, variables=variables) as rig:
            ready = await asyncio.get_running_loop().sock_recv(systemd, 4096)
            for pid in (await rig.serving()).values():
                assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert ready.startswith(b"READY=1\nSTATUS=2 workers, ")


async def test_nobody_starts_a_worker_by_hand() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "serve", "--worker=1", f"--channel={theirs.fileno()}"),
            pass_fds=(theirs.fileno(),),
            stderr=asyncio.subprocess.PIPE,
        )
        ours.sendall(b"{}\n")
        _, text = await process.communicate()

    assert process.returncode == 1
    assert b"orders are not understood" in text
