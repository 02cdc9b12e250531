"""Two boxes, one fleet: machines with networks of their own, that know each other by a store, a secret and their gates.

Living documentation: each test is one thing that the owner of two boxes relies on.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from proxy.store.valkey_files import binary
from tests.certificates import Certificates, make_certificates
from tests.gate_program import SECRET
from tests.namespaces import ADDRESSES, Boxes, two_boxes
from tests.slotgate_process import SlotgateProcess, slotgate
from tests.wait import until, until_sync

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

GATE_PORT, ENGINE_PORT, STORE_PORT = 11436, 11501, 6379
MODEL = "smol"
STORE = f"redis://{ADDRESSES['a']}:{STORE_PORT}/0"


@pytest.fixture
def boxes() -> Iterator[Boxes]:
    with two_boxes() as boxes:
        yield boxes


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"), *(f"IP:{each}" for each in ADDRESSES.values()))


@contextlib.contextmanager
def program(boxes: Boxes, box: str, *command: str, says: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program in a box; `says`: wait for this line first."""
    process = subprocess.Popen(
        [*boxes.inside(box), *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if says else None
    )
    try:
        if says:
            assert process.stdout is not None
            assert process.stdout.readline().decode().strip() == says
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def engine(boxes: Boxes, box: str, directory: Path) -> Iterator[None]:
    """An emulated engine on the loopback address of a box: nobody outside reaches it."""
    address = directory / f"engine-{box}"
    listen = (f"--listen=127.0.0.1:{ENGINE_PORT}", f"--address-file={address}")
    options = (f"--model={MODEL}", "--slots=4", "--speed=20")
    with program(boxes, box, sys.executable, "-m", "proxy.emulated", *listen, *options):
        until_sync(address.exists, "the engine listens", 30)
        yield


def test_engines_are_reached_through_the_gate_and_not_without(
    boxes: Boxes, certificates: Certificates, tmp_path: Path
) -> None:
    def ask(box: str, *arguments: str) -> str:
        return boxes.run(box, sys.executable, "-m", "tests.gate_program", "ask", *arguments).strip()

    gate, url = f"{ADDRESSES['a']}:{GATE_PORT}", f"http://127.0.0.1:{ENGINE_PORT}"
    opening = ("tests.gate_program", "open", gate, url, str(certificates.cert), str(certificates.key))
    with engine(boxes, "a", tmp_path), program(boxes, "a", sys.executable, "-m", *opening, says="open"):
        body = '{"prompt": "hello", "n_predict": 4}'
        assert ask("b", gate, "/completion", body, str(certificates.ca)).startswith("200 {")
        assert "want TLS" in ask("b", gate, "/health", "")
        direct = f"import urllib.request as r; r.urlopen('http://{ADDRESSES['a']}:{ENGINE_PORT}/health', timeout=5)"
        with pytest.raises(OSError, match="refused"):
            boxes.run("b", sys.executable, "-c", direct)
        boxes.cut()
        cut_off = ask("b", gate, "/health", "", str(certificates.ca))
        assert cut_off.startswith("connect: ")
        assert f"the gate {gate}" in cut_off
        boxes.heal()
        assert ask("b", gate, "/health", "", str(certificates.ca)).startswith("200 ")


class Fleet(NamedTuple):
    """Both boxes with a slotgate and an engine each; the store is in box a."""

    boxes: Boxes
    a: SlotgateProcess
    b: SlotgateProcess

    def client(self, box: str) -> httpx.AsyncClient:
        """A client of one box. Its socket has a path, which namespaces of networks do not separate."""
        running = self.a if box == "a" else self.b
        path = str(running.state_dir.parent / "http.sock")
        transport = httpx.AsyncHTTPTransport(uds=path)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)


def config(box: str, directory: Path, certificates: Certificates, secret: str = SECRET) -> str:
    state = directory / "state"
    return (
        f'listen = "unix:{directory}/http.sock"\nstate_dir = "{state}"\nadmin_socket = "{state}/admin.sock"\n'
        f'[store]\nurl = "{STORE}"\nlease_ttl_s = 3.0\n'
        f'[box]\nname = "box-{box}"\ngate = ":{GATE_PORT}"\ngate_address = "{ADDRESSES[box]}:{GATE_PORT}"\n'
        f'secret = "{secret}"\ntls_cert = "{certificates.cert}"\ntls_key = "{certificates.key}"\n'
        f'tls_ca = "{certificates.ca}"\n'
        f'[[backends]]\nname = "gpu-{box}"\nurl = "http://127.0.0.1:{ENGINE_PORT}"\nrunning_limit = 4\n'
    )


@contextlib.contextmanager
def fleet(boxes: Boxes, tmp_path: Path, certificates: Certificates, secret_of_b: str = SECRET) -> Iterator[Fleet]:
    """Both boxes, joined; with another secret in box b they only share the store."""
    with contextlib.ExitStack() as stack:
        options = ("--port", str(STORE_PORT), "--protected-mode", "no", "--save", "", "--dir", str(tmp_path))
        stack.enter_context(program(boxes, "a", str(binary()), *options, "--logfile", str(tmp_path / "store.log")))
        running = {}
        for box, secret in (("a", SECRET), ("b", secret_of_b)):
            directory = tmp_path / box
            directory.mkdir()
            stack.enter_context(engine(boxes, box, directory))
            text = config(box, directory, certificates, secret)
            running[box] = stack.enter_context(slotgate(directory, text, inside=boxes.inside(box)))
        yield Fleet(boxes, running["a"], running["b"])


async def where(client: httpx.AsyncClient, count: int, tokens: int = 20) -> list[str]:
    """Send so many requests at once; the backend of each, all of which must be answered."""

    async def one(number: int) -> str:
        body = {"model": MODEL, "prompt": f"Story number {number}", "stream": False, "options": {"num_predict": tokens}}
        answer = await client.post("/api/generate", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["done"]
        return answer.headers["X-Slotgate-Backend"]

    return list(await asyncio.gather(*map(one, range(count))))


def ready(running: SlotgateProcess) -> set[str]:
    return {backend.name for backend in running.backends() if backend.health == "ready"}


async def test_each_box_uses_both_cards(boxes: Boxes, certificates: Certificates, tmp_path: Path) -> None:
    with fleet(boxes, tmp_path, certificates) as running:
        for each in (running.a, running.b):
            await asyncio.to_thread(each.wait_ready, 2)
        for box in "ab":
            async with running.client(box) as client:
                used = await where(client, 40)
                assert len(set(used)) == 2
                assert min(used.count(name) for name in set(used)) >= 8, used


async def test_a_box_that_is_cut_off_goes_on_alone_and_comes_back(
    boxes: Boxes, certificates: Certificates, tmp_path: Path
) -> None:
    with fleet(boxes, tmp_path, certificates) as running:
        for each in (running.a, running.b):
            await asyncio.to_thread(each.wait_ready, 2)
        boxes.cut()
        await until(lambda: len(ready(running.a)) == 1, "box a drops the backend of the silent box", 60)
        async with running.client("a") as client:
            assert set(await where(client, 8)) == ready(running.a)
        # Box b lost the store too: only by trying does it find out that the other's gate is away as well.
        async with running.client("b") as client:
            assert len(set(await where(client, 16))) == 1, "what failed before its first byte went elsewhere"
        await until(lambda: len(ready(running.b)) == 1, "box b has found the other's backend down", 60)
        boxes.heal()
        for box, each in (("a", running.a), ("b", running.b)):
            await until(lambda each=each: len(ready(each)) == 2, f"box {box} has the other's backend again", 60)  # type: ignore[misc]
        async with running.client("b") as client:
            assert len(set(await where(client, 40))) == 2


async def test_a_box_with_another_secret_is_let_in_nowhere(
    boxes: Boxes, certificates: Certificates, tmp_path: Path
) -> None:
    with fleet(boxes, tmp_path, certificates, secret_of_b="another-secret-0123456789") as running:
        await until(lambda: ready(running.a) and ready(running.b), "both boxes serve", 60)
        for box in "ab":
            async with running.client(box) as client:
                assert len(set(await where(client, 16))) == 1, "what failed before its first byte went elsewhere"
        log = running.a.log.read_text() + running.b.log.read_text()
        assert "another-secret" not in log
        assert SECRET not in log
