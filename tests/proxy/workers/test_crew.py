"""All workers: started again, replaced, their sockets looked after. The programs are pretenders."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from proxy.config import Config, Paths
from proxy.listener import close_all, open_groups
from proxy.workers import crew as module
from proxy.workers.crew import Crew
from proxy.workers.worker import WorkerError
from tests.proxy.workers.pretender import Pretender, pretender
from tests.wait import until

__all__ = ["pretender"]


@asynccontextmanager
async def made(tmp_path: Path, workers: int = 2, **config: object) -> AsyncIterator[Crew]:
    """A crew that is not started yet."""
    groups = open_groups("127.0.0.1:0", [], workers)
    paths = Paths(tmp_path / "state", tmp_path / "state" / "admin.sock")
    crew = Crew(Config.model_validate({"workers": workers} | config), paths, groups, lambda: ["gpu0"])
    try:
        yield crew
    finally:
        await crew.close()
        for group in groups:
            close_all(group)


def pids(crew: Crew) -> list[int]:
    return [place.worker.pid for place in crew.places if place.worker is not None]


def all_ready(crew: Crew) -> Callable[[], bool]:
    return lambda: all(place.worker is not None and place.worker.is_ready for place in crew.places)


async def test_each_gets_its_orders_and_a_socket_of_its_own(tmp_path: Path, pretender: Pretender) -> None:
    async with made(tmp_path, 3, store={"url": "redis://:secret@h"}) as crew:
        await crew.start()
        given = sorted(pretender.notes("orders"), key=lambda note: str(note["number"]))

    assert [note["number"] for note in given] == [1, 2, 3]
    assert [note["group"] for note in given] == [0, 1, 2]
    assert given[0]["config"] == {"workers": 3, "store": {"url": "redis://:secret@h"}}, "what was given, nothing else"
    assert given[0]["ready"] == ["gpu0"]
    assert len({str(note["admin_socket"]) for note in given}) == 3


async def test_secrets_reach_the_workers(tmp_path: Path, pretender: Pretender) -> None:
    assert module._plain(SecretStr("a secret of all boxes")) == "a secret of all boxes"
    assert module._plain(Path("/x")) == "/x"


async def test_one_that_dies_is_started_again_and_its_socket_looked_after(tmp_path: Path, pretender: Pretender) -> None:
    async with made(tmp_path) as crew:
        await crew.start()
        first, second = pids(crew)
        pretender.manner(1, "never-ready")
        os.kill(first, signal.SIGKILL)
        await until(lambda: [note["groups"] for note in pretender.notes("accept")][-1:] == [[0]], "the other one helps")
        assert pretender.notes("accept")[-1]["pid"] == second
        await until(lambda: len(pretender.notes("orders")) == 3, "another one starts")
        pretender.manner(1, "well")
        os.kill(int(str(pretender.notes("orders")[2]["pid"])), signal.SIGKILL)
        await until(all_ready(crew), "it is back")
        await until(lambda: pretender.notes("accept")[-1]["groups"] == [], "the other one need not help any more")
        assert crew.places[0].restarts >= 1
        assert pids(crew)[1] == second


async def test_one_that_keeps_dying_is_tried_again_ever_more_slowly(
    tmp_path: Path, pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_FIRST_S", 0.01)
    async with made(tmp_path) as crew:
        await crew.start()
        pretender.manner(1, "dies")
        os.kill(pids(crew)[0], signal.SIGKILL)
        await until(lambda: crew.places[0].restarts >= 3, "it is tried again and again")
        assert crew.places[0].worker is None
        pretender.manner(1, "well")
        await until(all_ready(crew), "it is back")


async def test_one_that_cannot_start_ends_all(tmp_path: Path, pretender: Pretender) -> None:
    pretender.manner(2, "dies")
    async with made(tmp_path) as crew:
        with pytest.raises(WorkerError, match="worker 2 ended with status 3 before it accepted connections"):
            await crew.start()
    started = [int(str(note["pid"])) for note in pretender.notes("orders")]
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_one_that_never_gets_ready_is_given_up(
    tmp_path: Path, pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_TIMEOUT_S", 0.5)
    pretender.manner(1, "never-ready")
    async with made(tmp_path, 1) as crew:
        with pytest.raises(WorkerError, match=r"accepts no connections after 0\.5 s"):
            await crew.start()


async def test_a_rolling_restart(tmp_path: Path, pretender: Pretender) -> None:
    async with made(tmp_path, 3) as crew:
        await crew.start()
        before = pids(crew)
        assert crew.restart()
        assert not crew.restart(), "one at a time"
        await until(lambda: not crew.rolling, "it is done")
        assert (crew.replaced, crew.problem) == (3, "")
        assert not set(pids(crew)) & set(before)
        await until(lambda: not crew.retired, "the old ones ended")
        heard = pretender.notes("retire")
        assert [note["pid"] for note in heard] == before
        assert heard[0]["within_s"] == 3600.0


async def test_a_replacement_that_does_not_start_leaves_the_old_one(tmp_path: Path, pretender: Pretender) -> None:
    async with made(tmp_path, 3) as crew:
        await crew.start()
        before = pids(crew)
        pretender.manner(2, "dies")
        crew.restart()
        await until(lambda: not crew.rolling, "it is given up")
        assert crew.replaced == 1
        assert "worker 2 ended with status 3" in crew.problem
        assert pids(crew)[1:] == before[1:]
        assert all_ready(crew)()
        pretender.manner(2, "well")
        crew.restart()
        await until(lambda: not crew.rolling, "it is done")
        assert (crew.replaced, crew.problem) == (3, "")


async def test_one_that_does_not_retire_is_ended(
    tmp_path: Path, pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_GRACE_S", 0.1)
    async with made(tmp_path, 1, limits={"retire_s": 0.1, "drain_s": 0.1}) as crew:
        await crew.start()
        [old] = pids(crew)
        pretender.manner(1, "deaf")
        crew.restart()
        await until(lambda: not crew.rolling and not crew.retired, "the old one ended")
        with pytest.raises(ProcessLookupError):
            os.kill(old, 0)


async def test_a_stop_ends_all_and_starts_none_again(tmp_path: Path, pretender: Pretender) -> None:
    async with made(tmp_path) as crew:
        await crew.start()
        await crew.drain(asyncio.Event())
        assert crew.workers == []
        assert not crew.restart()
    assert len(pretender.notes("orders")) == 2


async def test_a_stop_is_not_held_up_by_a_deaf_one(
    tmp_path: Path, pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_GRACE_S", 0.1)
    pretender.manner(1, "deaf")
    async with made(tmp_path, limits={"drain_s": 0.1}) as crew:
        await crew.start()
        await crew.drain(asyncio.Event())
        assert [worker.number for worker in crew.workers] == [1]
    assert crew.workers == []


async def test_another_configuration_reaches_those_that_run_and_those_to_come(
    tmp_path: Path, pretender: Pretender
) -> None:
    async with made(tmp_path) as crew:
        await crew.start()
        crew.reconfigure({"limits": Config.model_validate({"limits": {"drain_s": 7}}).limits})
        await until(lambda: len(pretender.notes("reload")) == 2, "both hear")
        crew.restart()
        await until(lambda: not crew.rolling, "they are replaced")
    wanted = {"workers": 2, "limits": {"drain_s": 7.0}}
    assert {str(note["config"]) for note in pretender.notes("reload")} == {str(wanted)}
    assert [note["config"] for note in pretender.notes("orders")[2:]] == [wanted, wanted]


async def test_a_socket_that_all_share_needs_no_looking_after(tmp_path: Path, pretender: Pretender) -> None:
    with socket.create_server(("127.0.0.1", 0)) as shared:
        paths = Paths(tmp_path / "state", tmp_path / "state" / "admin.sock")
        crew = Crew(Config.model_validate({"workers": 2}), paths, [[shared]], list)
        await crew.start()
        os.kill(pids(crew)[0], signal.SIGKILL)
        await until(lambda: crew.places[0].restarts == 1 and all_ready(crew)(), "it is back")
        await crew.close()
    assert {note["group"] for note in pretender.notes("orders")} == {0}
    assert pretender.notes("accept") == []
