"""The command `slotgate`: thin commands, one file per area. Owns no logic; what a command needs is imported in it.

stdout carries data, stderr talk. Exit status: 0 fine, 1 a problem was found, 2 wrong usage.
"""

import os
import sys
from typing import Annotated

import typer

from proxy import __version__
from proxy.cli import (
    config,
    demo,
    drain,
    explain,
    models,
    output,
    policy,
    ps,
    pull,
    residency,
    restart,
    serve,
    simulate,
    status,
    store,
    up,
    version,
    workers,
)

app = typer.Typer(
    name="slotgate",
    help="One endpoint for all your GPUs, in front of Ollama and llama-server.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: half the start-up time, and readable in a pipe
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"slotgate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """One endpoint for all your GPUs, in front of Ollama and llama-server."""


app.command("serve")(serve.serve)
app.command("ps")(ps.ps)
app.command("status")(status.status)
app.command("list")(models.list_models)
app.command("pull")(pull.pull)
app.command("rm")(pull.rm)
app.command("cp")(pull.cp)
app.command("drain")(drain.drain)
app.command("undrain")(drain.undrain)
app.command("restart")(restart.restart)
app.command("load")(residency.load)
app.command("unload")(residency.unload)
app.command("pin")(residency.pin)
app.command("unpin")(residency.unpin)
app.command("explain")(explain.explain)
app.add_typer(workers.app, name="workers")
app.add_typer(policy.app, name="policy")
app.add_typer(config.app, name="config")
app.add_typer(store.app, name="store")
app.command("simulate")(simulate.simulate)
app.command("up")(up.up)
app.command("demo")(demo.demo)
app.command("version")(version.version)


def main() -> None:
    """The console script."""
    given = {f"argument {number}": argument for number, argument in enumerate(sys.argv[1:], 1)}
    given |= {f"variable {name}": value for name, value in os.environ.items() if name.startswith("SLOTGATE_")}
    for name, value in given.items():
        # Bytes that are no text come as lone surrogates, which nothing that sends or prints text takes.
        if not _is_text(name + value):
            shown = os.fsencode(f"{name} is not UTF-8: {value}").decode(errors="backslashreplace")
            print(f"error: {shown}", file=sys.stderr)
            sys.exit(2)
    with output.checked():
        app(prog_name="slotgate")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
