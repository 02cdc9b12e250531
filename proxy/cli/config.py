"""`slotgate config`: check, show, schema, path."""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from proxy.cli.asking import Json, fail, print_json, tell

app = typer.Typer(help="Check and show the configuration.", no_args_is_help=True, rich_markup_mode=None)

File = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="This file instead of the usual ones.")]


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A file to check instead of the usual ones.")
    ] = None,
    json: Json = False,
) -> None:
    """Check the configuration and tell every problem at once.

    It is the one that `slotgate serve` would use here: the files, or only FILE, and the environment.
    """
    from proxy.config_rules import box_warnings
    from proxy.config_sources import ConfigError, LoadedConfig, Problem, load_config
    from proxy.config_tree import dotted

    loaded: LoadedConfig | None = None
    warnings: list[Problem] = []
    problems: list[Any] = []
    try:
        loaded = load_config({}, config_file=file)
        for path, what, fix in box_warnings(loaded.config.box):
            warnings.append(Problem(loaded.origins[dotted(path)], dotted(path), what, fix))
    except ConfigError as error:
        problems = error.problems
    files = [str(path) for path in loaded.files] if loaded is not None else []
    if json:
        print_json({"ok": not problems, "files": files, "problems": problems, "warnings": warnings})
    elif loaded is not None:
        read = ", ".join(files) or "no file, only the environment"
        count = len(loaded.config.backends)
        for warning in warnings:
            tell(f"warning: {warning}")
        print(f"ok: {read}; {count} {'entry' if count == 1 else 'entries'} in backends")
    else:
        for problem in problems:
            tell(str(problem))
        tell(f"\n{len(problems)} {'problem' if len(problems) == 1 else 'problems'}")
    if problems:
        raise typer.Exit(1)


@app.command()
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Tell where each value comes from.")] = False,
    json: Json = False,
    config: File = None,
) -> None:
    """Print the configuration in effect as TOML, secrets masked."""
    from proxy.config_sources import ConfigError, load_config
    from proxy.config_text import render_toml, shown

    try:
        loaded = load_config({}, config_file=config, need_backends=False)
    except ConfigError as error:
        fail(f"the configuration cannot be used\n{error}")
    if json:
        print_json({"config": shown(loaded.config), "origins": loaded.origins})
    else:
        print(render_toml(loaded, with_origins=origin), end="")


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    from proxy.config_text import json_schema

    print_json(json_schema())


@app.command()
def path(json: Json = False) -> None:
    """List the files that are read, in their order; later ones win."""
    from proxy.config_sources import CONFIG_VARIABLE, default_files

    named = os.environ.get(CONFIG_VARIABLE)
    files = [Path(named)] if named else default_files(os.environ, root=os.geteuid() == 0)
    if json:
        print_json([{"file": str(file), "exists": _exists(file)} for file in files])
    else:
        for file in files:
            print(file if _exists(file) else f"{file}  (not there)")


@app.command(hidden=True)
def docs(
    update: Annotated[Path | None, typer.Option(help="Put the tables into this document, between its marks.")] = None,
) -> None:
    """Print the tables of all options, as docs/configuration.md has them."""
    from proxy.config_text import option_tables

    if update is None:
        print(option_tables(), end="")
        return
    text = update.read_text()
    marks = re.compile(r"(<!-- options: begin -->\n).*(<!-- options: end -->)", re.DOTALL)
    if not marks.search(text):
        fail(f"{update} has no <!-- options: begin --> and <!-- options: end -->")
    update.write_text(marks.sub(lambda found: f"{found[1]}\n{option_tables()}\n{found[2]}", text))


def _exists(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:
        return False
