"""`slotgate up`: a whole emulated box on a laptop. Emulated engines, each a process of its own, behind the real proxy.

Owns what is started and that it ends; must not know how it is shown.
"""

import contextlib
import difflib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from proxy import trial
from proxy.backends.launch import kept
from proxy.backends.verify import DEFAULT_RUNNING_LIMIT
from proxy.simulations import CARDS
from proxy.trial import TrialError, quoted

ADDRESS_TIMEOUT_S = 30.0
DRAIN_S = 2.0
"""Whoever stops a toy does not want to wait for its answers."""
_KEEPER_FLAGS = {"--grace": 3.0, "--log-bytes": 2**20}


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be started."""

    cards: tuple[str, ...]
    """One engine each: keys of `CARDS`."""
    slots: int = 16
    model: str = "emulated"
    speed: float = 1.0
    """Divides all times of the engines."""
    api: str = "llama-server"
    """Or `ollama`."""
    listen: str = "127.0.0.1:11434"
    context_tokens: int = 8192


class Started(msgspec.Struct, frozen=True):
    """One emulated engine that runs."""

    name: str
    card: str
    gpu_name: str
    url: str
    pid: int
    log: str


class Up(msgspec.Struct, frozen=True):
    """What runs, for whoever wants to use it."""

    url: str
    """Where clients connect: http://HOST:PORT or unix:/PATH."""
    model: str
    api: str
    slots: int
    running_limit: int
    """Slots of an engine that run requests at once; the others keep prefixes."""
    speed: float
    admin_socket: str
    log: str
    pid: int
    """Process of the proxy."""
    engines: tuple[Started, ...]


def cards_of(text: str) -> tuple[str, ...]:
    """Read `4x4090`, or several of that kind by comma: the card of each engine.

    Raises:
        TrialError: it is none; the message says what there is.
    """
    cards: list[str] = []
    for part in text.split(","):
        found = re.fullmatch(r"(?:(\d{1,2})x)?(\w+)", part.strip())
        if found is None or (found[1] and not int(found[1])):
            raise TrialError(f"--emulate={text}: write COUNTxCARD, such as 4x4090; cards: {', '.join(CARDS)}")
        card = found[2].lower()
        if card not in CARDS:
            near = difflib.get_close_matches(card, CARDS, 1)
            hint = f"do you mean {near[0]}?" if near else f"there are {', '.join(CARDS)}"
            raise TrialError(f"--emulate={text}: no step times of a card {found[2]!r}; {hint}")
        cards += [card] * int(found[1] or 1)
    return tuple(cards)


def run(box: Box, *, tell: Callable[[str], None], show: Callable[[Up], None]) -> None:
    """Start the box, show what runs, and stay until the proxy ends or somebody interrupts.

    Args:
        box: what to start.
        tell: is told how far it is, a line at a time.
        show: is given what runs, once clients can use it.

    Raises:
        TrialError: it cannot be started, or the proxy ended by itself.
        KeyboardInterrupt: Ctrl-C, SIGTERM or a closed terminal. Everything has ended by then.
    """
    trial.stop_on_signals()
    with trial.state_dir("up") as directory:
        trial.check_listen(box.listen, "--listen=127.0.0.1:11435")
        tell(f"starting {len(box.cards)} emulated engines, an embedded Valkey, and slotgate")
        with _engines(box, directory) as engines, trial.serve(directory, box.listen, _backends(box, engines)) as proxy:
            listen = trial.wait_until_ready(proxy, directory, len(engines), tell)
            show(
                Up(
                    url=listen if listen.startswith("unix:") else f"http://{listen}",
                    model=box.model,
                    api=box.api,
                    slots=box.slots,
                    running_limit=min(DEFAULT_RUNNING_LIMIT, box.slots),
                    speed=box.speed,
                    admin_socket=str(directory / trial.ADMIN_SOCKET),
                    log=str(directory / "slotgate.log"),
                    pid=proxy.pid,
                    engines=tuple(engines),
                )
            )
            status = proxy.wait()
            raise TrialError(f"slotgate ended with status {status}:\n{trial.tail(directory)}")


def _backends(box: Box, engines: Sequence[Started]) -> str:
    tables = [
        f"[[backends]]\nname = {quoted(engine.name)}\nurl = {quoted(engine.url)}\nengine = {quoted(box.api)}\n"
        f"slots = {box.slots}\ncontext_tokens = {box.context_tokens}\ngpu_name = {quoted(engine.gpu_name)}\n"
        for engine in engines
    ]
    return f"limits.drain_s = {DRAIN_S}\n{''.join(tables)}"


@contextlib.contextmanager
def _engines(box: Box, directory: Path) -> Iterator[list[Started]]:
    named = [(f"{card}-{number}", card) for number, card in enumerate(box.cards)]
    with contextlib.ExitStack() as stack:
        # all are started before any is waited for
        keepers = [stack.enter_context(_engine(box, directory, name, card)) for name, card in named]
        started = []
        for (name, card), (keeper, pid) in zip(named, keepers, strict=True):
            url, log = _address(keeper, directory, name), str(_log(directory, name))
            started.append(Started(name, card, CARDS[card] or "cpu", url, pid, log))
        yield started


@contextlib.contextmanager
def _engine(box: Box, directory: Path, name: str, card: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Run one engine under a keeper, so that it ends with us however we end; yields the keeper and the engine's pid."""
    argv = [sys.executable, "-m", "proxy.emulated", f"--api={box.api}", f"--model={box.model}", f"--slots={box.slots}"]
    argv += [f"--context={box.context_tokens}", f"--card={card}", f"--speed={box.speed}", "--faults"]
    argv += ["--listen=127.0.0.1:0", f"--address-file={_address_file(directory, name)}"]
    command = kept(argv, _log(directory, name), parent=os.getpid(), options=_KEEPER_FLAGS)
    keeper = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # its end of file is what ends the keeper if we are killed
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with keeper:
        try:
            assert keeper.stdout is not None  # noqa: S101 - we asked for the pipe
            told = keeper.stdout.readline()  # empty if the keeper itself cannot start
            yield keeper, msgspec.json.decode(told).get("started", 0) if told else 0
        finally:
            trial.stop(keeper)


def _log(directory: Path, name: str) -> Path:
    return directory / f"{name}.log"


def _address_file(directory: Path, name: str) -> Path:
    return directory / f"{name}.address"


def _address(keeper: "subprocess.Popen[bytes]", directory: Path, name: str) -> str:
    file = _address_file(directory, name)
    deadline = time.monotonic() + ADDRESS_TIMEOUT_S
    while not file.exists():
        if keeper.poll() is not None or time.monotonic() > deadline:
            log = _log(directory, name).read_text(errors="replace") if _log(directory, name).exists() else ""
            raise TrialError(f"the emulated engine {name} does not start:\n{log[-2000:]}")
        time.sleep(0.02)
    return file.read_text()
