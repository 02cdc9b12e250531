"""`slotgate store` against a real Valkey: what it finds, counts and removes, and whom it asks first."""

import asyncio
import json
import os
import pty
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
import structlog

from proxy.cli import store as cli
from proxy.cli.asking import print_json
from proxy.cli.store import Target, check_answer, check_text, stats_answer, stats_text
from proxy.endpoint import MASK
from proxy.store.embedded import EmbeddedStore
from proxy.store.keys import Keys
from proxy.store.ops import KindStats, Latency, StoreCheck, StoreStats
from proxy.store.records import BackendRecord
from proxy.store.store import Store
from proxy.store.trouble import Trouble, TroubleKind
from tests.proxy.cli.conftest import Slotgate
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until_sync

Golden = Callable[[str, str], None]

PASSWORD = "s3cret"
TARGET = Target("redis://:x@h:1/0", f"redis://:{MASK}@h:1/0", "lab", "/etc/slotgate/config.toml:4")
CHECKED = StoreCheck(
    url="redis://h:1",
    warnings=("maxmemory-policy is allkeys-lru: leases may be evicted; set it to noeviction",),
    server="valkey 9.1.2",
    mode="standalone",
    role="master",
    replicas=2,
    memory_used_bytes=31_000_000,
    memory_max_bytes=256 * 1024 * 1024,
    eviction="allkeys-lru",
    persistence="append-only file",
    clock_off_s=-0.01,
    ping=Latency(0.051, 0.12),
    claim=Latency(0.28, 0.614),
)
COUNTED = StoreStats(
    "lab",
    ("box-1.8a798fb9", "box-\x1b2.\u00e9"),
    (KindStats("backend", 64, 61_440, 12.5, 59.6, 0), KindStats("odd", 2, 100, None, None, 2)),
)


@pytest.fixture(scope="module")
def process() -> Iterator[StoreProcess]:
    with tempfile.TemporaryDirectory(prefix="sg-") as name:
        running = StoreProcess("valkey", Path(name), "--requirepass", PASSWORD)
        running.start()
        yield running
        running.stop()


@pytest.fixture
def url(process: StoreProcess) -> str:
    return f"unix://:{PASSWORD}@{process.path}"


@pytest.fixture
def raw(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url, protocol=2) as client:
        client.flushall()
        yield client


def as_process(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Beside an event loop of the test, and without a terminal."""
    command = [sys.executable, "-m", "proxy", "store", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def test_alone_it_shows_help(slotgate: Slotgate) -> None:
    result = slotgate("store")
    assert result.exit_code == 2
    assert "purge" in result.stdout + result.stderr


def test_how_it_looks(golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    golden("store-check.txt", check_text(TARGET, CHECKED))
    golden("store-stats.txt", stats_text(TARGET, COUNTED))
    print_json(check_answer(TARGET, CHECKED))
    golden("store-check.json", capsys.readouterr().out)
    print_json(stats_answer(TARGET, COUNTED))
    golden("store-stats.json", capsys.readouterr().out)


def test_a_store_that_will_do(slotgate: Slotgate, url: str, raw: redis.Redis) -> None:
    result = slotgate("store", "check", "--url", url)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == f"store      {url.replace(PASSWORD, MASK)} (--url)"
    assert lines[2].startswith("software   valkey ")
    assert lines[-1] == "ok: slotgate can use this store"
    raw.config_set("maxmemory-policy", "allkeys-lru")
    result = slotgate("store", "check", "--url", url)
    raw.config_set("maxmemory-policy", "noeviction")
    assert result.exit_code == 0
    assert "\nwarning: maxmemory-policy is allkeys-lru: " in result.stdout
    told = json.loads(slotgate("store", "check", "--url", url, "--fleet", "lab", "--json").stdout)
    assert (told["ok"], told["fleet"], told["embedded"], told["trouble"]) == (True, "lab", False, None)
    assert raw.keys() == []


@pytest.mark.parametrize("form", ["unix://:{}@{}", "unix://{1}?password={0}", "unix://joe:{}@{}"])
@pytest.mark.parametrize("command", [("check",), ("stats",), ("purge", "--yes"), ("purge", "--yes", "--json")])
def test_a_wrong_password(slotgate: Slotgate, process: StoreProcess, command: tuple[str, ...], form: str) -> None:
    result = slotgate("store", *command, "--url", form.format("wr0ng", process.path))
    said = result.stdout + result.stderr
    assert result.exit_code == 1
    assert "password: " in said
    assert "fix: put the right user and password into --url: " in said
    assert "wr0ng" not in said


def test_nothing_listens(slotgate: Slotgate) -> None:
    result = slotgate("store", "check", "--url=redis://:hidden@127.0.0.1:1")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith("problem: unreachable: Error 111 ")
    assert result.stdout.endswith("; fix: start it, or correct --url\n")
    result = slotgate("store", "stats", "--url=redis://:hidden@127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: redis://:{MASK}@127.0.0.1:1: unreachable: ")
    told = json.loads(slotgate("store", "check", "--url=redis://127.0.0.1:1", "--json").stdout)
    assert not told["ok"]
    assert told["trouble"]["kind"] == "unreachable"
    assert told["trouble"]["advice"] == "start it, or correct --url"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--url=http://:hidden@h",), "--url: write redis://"),
        (("--url=redis://:hidden@h", "--fleet=a b"), "--fleet: 'a b'"),
        (("--fleet=",), "--fleet: "),
        (
            ("--url=redis://:hidden@h?foo=1",),
            "--url: the URL of the store has an unknown option behind the question mark: 'foo'",
        ),
        (("--url=redis://:hidden@h?socket_timeout=x",), "--url: the URL of the store cannot be used: Invalid value"),
        (("--url=redis://:1#hidden@h",), "--url: the URL of the store has # or @ where none belongs"),
        (("--url=redis://:1?hidden@h",), "--url: the URL of the store has # or @ where none belongs"),
        (("--url=redis://:hid#den@h",), "--url: the port is a number"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_wrong_usage(slotgate: Slotgate, arguments: tuple[str, ...], said: str) -> None:
    for command in (("check",), ("stats",), ("purge", "--yes")):
        result = slotgate("store", *command, *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr
        assert "hidden" not in result.stderr


def test_the_configured_store(slotgate: Slotgate, home: Path, url: str) -> None:
    file = home / "mine.toml"
    file.write_text(f'fleet = "mine"\n[store]\nurl = "{url}"\n')
    result = slotgate("store", "stats", "--config", str(file))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"store     {url.replace(PASSWORD, MASK)} ({file}:3)",
        "fleet     mine",
        "proxies   none",
        "keys      none",
    ]
    result = slotgate("store", "stats", "--config", str(file), "--fleet=other", "--json")
    assert json.loads(result.stdout)["fleet"] == "other"
    file.write_text('[store]\nurl = "redis://:hidden@h?foo=1"\n')
    result = slotgate("store", "check", "--config", str(file))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {file}:2: the URL of the store has an unknown option ")


def test_a_broken_configuration_is_in_the_way_only_where_it_is_needed(
    slotgate: Slotgate, home: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "etc").mkdir()
    (home / "etc" / "config.toml").write_text("fleet = \n")
    result = slotgate("store", "purge", "--yes", "--url", url)
    assert result.exit_code == 1
    assert "name both --url and --fleet" in result.stderr
    assert "config.toml:1" in result.stderr
    assert slotgate("store", "check", "--url", url, "--fleet=default").exit_code == 0
    monkeypatch.setenv("SLOTGATE_NONSENSE", "1")
    assert slotgate("store", "check", "--url", url, "--fleet=default").exit_code == 0


def test_no_embedded_store(slotgate: Slotgate, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "SERVICE_STATE", home / "no-service")
    monkeypatch.setattr("proxy.trial.running_sockets", lambda: [home / "slotgate-up-1" / "admin.sock"])
    place = home / ".local/state/slotgate"
    result = slotgate("store", "check")
    assert result.exit_code == 1
    assert f"no embedded store runs here (Error 2 connecting to {EmbeddedStore(place).socket_path}." in result.stdout
    assert "fix: it runs while slotgate does: start slotgate; or name the store with --url" in result.stdout
    assert f"--url={EmbeddedStore(home / 'slotgate-up-1').url}" in result.stdout
    result = slotgate("store", "purge", "--yes")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no embedded store runs here" in result.stderr
    detail = Trouble(TroubleKind.UNREACHABLE, "Error 13 connecting to /s. Permission denied.")
    told = check_text(Target("unix:///s", "unix:///s", "f", "embedded", embedded=True), StoreCheck("", detail))
    assert "belongs to another user" in told
    assert "sudo -u slotgate" in told


async def test_the_embedded_store(slotgate: Slotgate, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="sg-") as name:
        embedded = EmbeddedStore(Path(name))
        await embedded.start()
        try:
            monkeypatch.setenv("SLOTGATE_STATE_DIR", name)
            result = await asyncio.to_thread(slotgate, "store", "check")
            assert result.exit_code == 0
            assert result.stdout.startswith(f"store      {embedded.url} (embedded)\n")
            monkeypatch.delenv("SLOTGATE_STATE_DIR")
            monkeypatch.setattr(cli, "SERVICE_STATE", Path(name))
            told = json.loads((await asyncio.to_thread(slotgate, "store", "check", "--json")).stdout)
            assert (told["url"], told["embedded"]) == (embedded.url, True)
        finally:
            await embedded.stop()


async def test_what_proxies_hold(url: str, raw: redis.Redis) -> None:
    """Counted; kept from a purge, unless forced; and others' data is nobody's business."""
    raw.set("theirs", "data")
    raw.set(Keys("other").life, "x", px=60_000)
    where = ("--url", url, "--fleet", "lab")
    store = Store(url, fleet="lab", proxy_id="box-1", call_timeout_s=5.0)
    await store.start()
    try:
        await store.heartbeat([BackendRecord("g0", 1, 4)])
        await store.claim("g0", "n", 1, 4, 1)
        told = json.loads((await asyncio.to_thread(as_process, "stats", *where, "--json")).stdout)
        assert told["proxies"] == [store.owner]
        assert {kind["kind"]: kind["keys"] for kind in told["kinds"]}["leases"] == 1
        assert told["size_bytes"] > 0
        before = sorted(raw.keys())

        refused = await asyncio.to_thread(as_process, "purge", *where, "--yes", "--json")
        assert refused.returncode == 1
        assert json.loads(refused.stdout)["refused_by"] == [store.owner]
        assert f"the fleet lab has 1 proxy ({store.owner}) at " in refused.stderr
        assert "--force" in refused.stderr
        assert sorted(raw.keys()) == before

        forced = await asyncio.to_thread(as_process, "purge", *where, "--yes", "--force")
        assert forced.returncode == 0
        assert forced.stdout.endswith(" keys removed\n")
        assert "leases" in forced.stderr
        assert "tell the store again" in forced.stderr
        assert PASSWORD not in forced.stdout + forced.stderr + refused.stderr
        assert (await store.claim("g0", "n2", 1, 4, 1)).seats_mine == 2
    finally:
        await store.close()
    gone = await asyncio.to_thread(as_process, "purge", *where, "--yes", "--json")
    assert gone.returncode == 0
    assert json.loads(gone.stdout)["removed"] > 0
    assert sorted(raw.keys()) == sorted([b"theirs", Keys("other").life.encode()])
    nothing = await asyncio.to_thread(as_process, "purge", *where, "--yes")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "there was nothing to remove\n", "")


def test_without_a_terminal_it_is_not_asked(url: str, raw: redis.Redis) -> None:
    raw.set(Keys("lab").life, "x", px=60_000)
    result = as_process("purge", "--url", url, "--fleet", "lab")
    assert (result.returncode, result.stdout) == (2, "")
    assert "add --yes" in result.stderr
    assert raw.dbsize() == 1


@pytest.mark.parametrize(
    ("answer", "status", "left"), [("y\n", 0, 0), ("Yes\n", 0, 0), ("n\n", 1, 1), ("\n", 1, 1), ("\x04", 1, 1)]
)
def test_on_a_terminal_it_asks(url: str, raw: redis.Redis, answer: str, status: int, left: int) -> None:
    raw.set(Keys("lab").life, "x", px=60_000)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "proxy", "store", "purge", "--url", url, "--fleet", "lab"]
    said = bytearray()
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs) as child:
        os.set_blocking(ours, False)

        def asked() -> bool:
            with suppress(BlockingIOError):
                said.extend(os.read(ours, 4096))
            return b"Remove 1 key of the fleet lab? [y/N]" in said

        until_sync(asked, "the question")
        os.write(ours, answer.encode())
        out, _ = child.communicate(timeout=30)
    os.close(ours)
    os.close(theirs)
    assert child.returncode == status
    assert out == (b"1 key removed\n" if status == 0 else b"")
    assert b"KIND" in said
    assert raw.dbsize() == left


def test_a_proxy_that_comes_while_it_is_asked(
    slotgate: Slotgate, url: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys("lab")
    raw.set(keys.life, "x", px=60_000)

    def comes(_question: str) -> bool:
        raw.zadd(keys.proxies, {"late": (time.time() + 60) * 1000})
        return True

    monkeypatch.setattr(cli, "_on_terminal", lambda: True)
    monkeypatch.setattr(cli, "_agreed", comes)
    result = slotgate("store", "purge", "--url", url, "--fleet", "lab")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the fleet lab has 1 proxy (late)" in result.stderr
    assert raw.exists(keys.life)


def test_log_lines_do_not_get_between(capsys: pytest.CaptureFixture[str]) -> None:
    async def asked() -> int:
        structlog.get_logger().warning("cluster has the keys elsewhere")
        return 3

    before = structlog.is_configured(), structlog.get_config()
    assert cli._run(TARGET, asked()) == 3
    assert (structlog.is_configured(), structlog.get_config()) == before
    assert capsys.readouterr() == ("", "")
