"""`slotgate pull`, `rm` and `cp`: change the models on the Ollamas' disks, on all of them at once."""

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxy.cli.asking import Json, Socket, asking, fail, tell
from proxy.cli.tables import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""

Model = Annotated[str, typer.Argument(metavar="MODEL", help="As for `ollama pull`: NAME, NAME:TAG, HOST/USER/NAME.")]


def pull(
    model: Model,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let the registry have a certificate of its own, or none.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print each line of progress as a JSON object.")] = False,
    socket: Socket = None,
) -> None:
    """Pull a model to all Ollamas.

    Goes on where an earlier pull was left.
    """
    body: dict[str, Any] = {"model": model} | ({"insecure": True} if insecure else {})
    with asking(socket) as proxy:
        lines = proxy.change_models("pull", body)
        try:
            error = _print_lines(lines) if json else _show(lines)
        except KeyboardInterrupt:
            tell(f"\nstopped; what has come is kept: `slotgate pull {printable(model)}` goes on from there")
            raise typer.Exit(INTERRUPTED) from None
    if error is not None:
        fail(printable(error))


def rm(model: Model, json: Json = False, socket: Socket = None) -> None:
    """Delete a model from all Ollamas."""
    _change("delete", {"model": model}, f"deleted {model}", json, socket)


def cp(
    source: Annotated[str, typer.Argument(metavar="SOURCE")],
    destination: Annotated[str, typer.Argument(metavar="DESTINATION")],
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Give a model another name at all Ollamas."""
    body = {"source": source, "destination": destination}
    _change("copy", body, f"copied {source} to {destination}", json, socket)


def _change(change: str, body: Mapping[str, object], done: str, json: bool, socket: Socket) -> None:
    with asking(socket) as proxy:
        lines = proxy.change_models(change, body)
        error = _print_lines(lines) if json else _plain(lines)
    if error is not None:
        fail(printable(error))
    if not json:
        print(printable(done))


def _print_lines(lines: Iterator[dict[str, Any]]) -> str | None:
    """For programs; returns the error that it ended with."""
    import msgspec

    error: str | None = _CUT
    for told in lines:
        print(msgspec.json.encode(told).decode(), flush=True)
        if "store" not in told and "note" not in told:
            error = told.get("error")
    return error


_CUT = "slotgate closed the connection before it was done; its log says why"


def _plain(lines: Iterator[dict[str, Any]]) -> str | None:
    """Without bars: each new status of each model store, on stderr, and each tenth of a blob."""
    error: str | None = _CUT
    said: dict[tuple[str, str], str] = {}
    for told in lines:
        if "note" in told:
            tell(printable(f"note: {told['note']}"))
        elif "store" not in told:
            error = told.get("error")
        else:
            key, text = (told["store"], str(told.get("digest") or "")), _plain_text(told)
            if text != said.get(key):
                said[key] = text
                tell(printable(f"{told['store']}: {text}"))
    return error


def _plain_text(told: Mapping[str, Any]) -> str:
    """`pulling 365c0bd3c000`, `pulling 365c0bd3c000 40 %`."""
    text = str(told.get("error") or told.get("status"))
    total, completed = told.get("total"), told.get("completed")
    if not (isinstance(total, int) and isinstance(completed, int) and total > 0):
        return text
    tenths = min(10, max(0, completed) * 10 // total)
    return f"{text} {tenths}0 %" if tenths else text


def _show(lines: Iterator[dict[str, Any]]) -> str | None:
    """With bars like those of `ollama pull`, on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        return _plain(lines)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        return Bars(bars).show(lines)


class Bars:
    """One bar per blob and model store, and a line for what each does beside that."""

    def __init__(self, bars: "Progress") -> None:
        self._bars = bars
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._said: dict[str, str] = {}

    def show(self, lines: Iterator[dict[str, Any]]) -> str | None:
        """Draw until it is over; returns the error that it ended with."""
        for told in lines:
            if "note" in told:
                self._say(f"note: {told['note']}")
            elif "store" not in told:
                return told.get("error")
            else:
                self._take(told)
        return _CUT

    def _take(self, told: dict[str, Any]) -> None:
        store, digest = str(told["store"]), str(told.get("digest") or "")
        if not digest:
            text = str(told.get("error") or told.get("status"))
            if self._said.get(store) != text:
                self._said[store] = text
                self._say(f"{store}: {text}")
            return
        name = f"{store}: {digest.removeprefix('sha256:')[:12]}"
        if (task := self._tasks.get((store, digest))) is None:
            task = self._tasks[store, digest] = self._bars.add_task(printable(name), total=told.get("total"))
        self._bars.update(task, completed=told.get("completed", 0), total=told.get("total"))

    def _say(self, text: str) -> None:
        self._bars.console.print(printable(text), markup=False, highlight=False)
