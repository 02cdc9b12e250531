"""`slotgate store`: is the store fit, what does the fleet keep in it, remove that. Asks the store, not the proxy."""

import os
import re
import shlex
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn, TypeVar

import typer

from proxy.cli.asking import Json, fail, may_exist, print_json, tell
from proxy.cli.tables import columns, printable, size, span

if TYPE_CHECKING:
    from proxy.config_sources import LoadedConfig
    from proxy.store.ops import Latency, StoreCheck, StoreStats
    from proxy.store.trouble import Trouble

T = TypeVar("T")

SERVICE_STATE = Path("/var/lib/slotgate")
"""State directory of the systemd unit (StateDirectory=slotgate)."""

ROLES = {"master": "primary", "slave": "replica"}

app = typer.Typer(
    help="Check the store, show what the fleet keeps there, remove it.", no_args_is_help=True, rich_markup_mode=None
)

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Take store.url and fleet from this file.")
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="redis://, rediss://, unix:// or redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB. "
        "Default: as configured, else the embedded one.",
    ),
]
Fleet = Annotated[str | None, typer.Option("--fleet", metavar="NAME", help="Default: as configured.")]


class Target(NamedTuple):
    """Which store, and whose keys in it."""

    url: str
    """With its password."""
    shown: str
    fleet: str
    origin: str
    """Where the URL was given: `--url`, `FILE:LINE`, `environment SLOTGATE_X`, or `embedded`."""
    embedded: bool = False


@app.command()
def check(config: ConfigFile = None, url: Url = None, fleet: Fleet = None, json: Json = False) -> None:
    """Find out whether slotgate can use the store.

    Looks at version, rights, memory and speed; writes a scratch key and removes it. Exit status 1 if it cannot be used.
    """
    from proxy.store import ops

    target = _target(config, url, fleet)
    found = _run(target, ops.check(target.url, target.fleet))
    if json:
        print_json(check_answer(target, found))
    else:
        print(check_text(target, found), end="")
    if found.trouble is not None:
        raise typer.Exit(1)


@app.command()
def stats(config: ConfigFile = None, url: Url = None, fleet: Fleet = None, json: Json = False) -> None:
    """Count the fleet's keys by kind: how many, how large, when they end."""
    from proxy.store import ops

    target = _target(config, url, fleet)
    found = _run(target, ops.stats(target.url, target.fleet))
    if json:
        print_json(stats_answer(target, found))
    else:
        print(stats_text(target, found), end="")


@app.command()
def purge(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also while proxies are there; they tell the store theirs again.")
    ] = False,
    config: ConfigFile = None,
    url: Url = None,
    fleet: Fleet = None,
    json: Json = False,
) -> None:
    """Remove all keys of the fleet; those of others stay.

    Drained backends take requests again, unless a proxy is there that remembers.
    The policy goes too; each proxy brings back the copy in its policy.toml.
    """
    from proxy.store import ops
    from proxy.store.ops import Purged

    if not yes and not _on_terminal():
        fail("nothing was removed: there is no terminal to ask on; add --yes", status=2)
    target = _target(config, url, fleet)
    found = _run(target, ops.stats(target.url, target.fleet))
    count = sum(kind.keys for kind in found.kinds)
    purged = Purged(0, found.proxies)
    if force or not found.proxies:
        if count:
            tell(stats_text(target, found))
            if not yes and not _agreed(f"Remove {_keys(count)} of the fleet {target.fleet}?"):
                fail("nothing was removed")
        # Also where nothing was found: a proxy that came or left in between changes what there is to remove.
        purged = _run(target, ops.purge(target.url, target.fleet, force=force))
    if json:
        print_json({**_named(target), "removed": purged.removed, "refused_by": purged.refused_by})
    if purged.refused_by:
        fail(
            f"nothing was removed: the fleet {target.fleet} has {_proxies(purged.refused_by)} at {target.shown}\n"
            "  fix: stop them first; or add --force: they go on, and tell the store again what they hold"
        )
    if not json:
        print(f"{_keys(purged.removed)} removed" if purged.removed else "there was nothing to remove")
        if found.proxies:
            tell("proxies that are there tell the store again what they hold")


def check_text(target: Target, found: "StoreCheck") -> str:
    """Facts, then one line per finding."""
    rows = [("store", _place(target)), ("fleet", target.fleet)]
    if found.server:
        role = ROLES.get(found.role, found.role)
        rows.append(("software", f"{found.server}, {found.mode}, {role}, replicas: {found.replicas}"))
        bound = f"of {size(found.memory_max_bytes)}" if found.memory_max_bytes else "no bound"
        when_full = f"; when full: {found.eviction}" if found.eviction else ""
        rows.append(("memory", f"{size(found.memory_used_bytes)} in use, {bound}{when_full}"))
    if found.persistence:
        rows.append(("disk", found.persistence))
    if found.ping is not None:
        rows.append(("clock", f"{round(found.clock_off_s, 1) + 0.0:+.1f} s off from ours"))  # no negative zero
        rows.append(("ping", _latency(found.ping)))
    if found.claim is not None:
        rows.append(("claim", f"{_latency(found.claim)}, with its release"))
    facts = columns(("", ""), rows, gap=3).removeprefix("\n")
    findings = [f"warning: {warning}" for warning in found.warnings]
    if found.trouble is not None:
        detail, fix = _explained(target, found.trouble)
        findings.append(f"problem: {found.trouble.kind.value}: {detail}; fix: {fix}")
    else:
        findings.append("ok: slotgate can use this store")
    return facts + "".join(f"{printable(finding)}\n" for finding in findings)


def check_answer(target: Target, found: "StoreCheck") -> dict[str, Any]:
    """The same for programs."""
    import msgspec

    told: dict[str, Any] = msgspec.to_builtins(found)
    if found.trouble is not None:
        detail, fix = _explained(target, found.trouble)
        told["trouble"] = {"kind": found.trouble.kind.value, "detail": detail, "advice": fix}
    return {"ok": found.trouble is None, **_named(target), **told, "url": target.shown}


def stats_text(target: Target, found: "StoreStats") -> str:
    """A line of totals, the proxies, and a table by kind."""
    count = sum(kind.keys for kind in found.kinds)
    here = f"{len(found.proxies)} ({', '.join(found.proxies)})" if found.proxies else "none"
    head = columns(
        ("", ""),
        [
            ("store", _place(target)),
            ("fleet", target.fleet),
            ("proxies", here),
            ("keys", f"{count}, {size(found.size_bytes)}" if count else "none"),
        ],
        gap=3,
    ).removeprefix("\n")
    if not count:
        return head
    rows = [
        (
            kind.kind,
            str(kind.keys),
            size(kind.size_bytes),
            "never" if kind.ttl_min_s is None else span(kind.ttl_min_s),
            "never" if kind.endless or kind.ttl_max_s is None else span(kind.ttl_max_s),
        )
        for kind in found.kinds
    ]
    table = columns(("KIND", "KEYS", "SIZE", "FIRST ENDS IN", "LAST ENDS IN"), rows)
    endless = [
        f"warning: {_keys(kind.endless)} of kind {printable(kind.kind)} never end: slotgate gives every key an end, so "
        "something else wrote them; `slotgate store purge` removes them with the rest\n"
        for kind in found.kinds
        if kind.endless
    ]
    return f"{head}\n{table}" + "".join(endless)


def stats_answer(target: Target, found: "StoreStats") -> dict[str, Any]:
    """The same for programs."""
    import msgspec

    return {**_named(target), **msgspec.to_builtins(found), "size_bytes": found.size_bytes}


def _target(config_file: Path | None, url: str | None, fleet: str | None) -> Target:
    """The store that is named, else the configured one, else the embedded one that runs here."""
    from proxy.config import resolve
    from proxy.endpoint import shown_url
    from proxy.store import EmbeddedStore, StoreStartError

    loaded = _loaded(config_file, url, fleet)
    config = loaded.config
    if config.store.url is not None:
        origin = "--url" if url is not None else loaded.origins["store.url"]
        shown = printable(shown_url(config.store.url))
        if "#" in shown or "@" in shown.partition("?")[2]:
            # A password with such a character ends early, and what follows would be taken for something to show.
            _unusable(origin, "has # or @ where none belongs: in a password write %23 for #, %3F for ?, %40 for @")
        return Target(config.store.url, shown, config.fleet, origin)
    try:
        embedded = EmbeddedStore(resolve(config, os.environ).state_dir)
        service = EmbeddedStore(SERVICE_STATE)
    except StoreStartError as error:
        fail(str(error))
    if config.state_dir is None and not may_exist(embedded.socket_path) and may_exist(service.socket_path):
        embedded = service
    return Target(embedded.url, embedded.url, config.fleet, "embedded", embedded=True)


def _loaded(config_file: Path | None, url: str | None, fleet: str | None) -> "LoadedConfig":
    from proxy.config_sources import ConfigError, load_config

    flags = {"store.url": url, "fleet": fleet}
    try:
        if config_file is None and url is not None and fleet is not None:
            # Nothing else is wanted of the configuration, so whatever is wrong with it is in nobody's way.
            return load_config(flags, config_file=Path(os.devnull), environ={}, need_backends=False)
        return load_config(flags, config_file=config_file, need_backends=False)
    except ConfigError as error:
        ours = {"flag --store": "--url", "flag fleet": "--fleet"}
        told = [f"{ours[each.where]}: {each.what}\n  fix: {each.fix}" for each in error.problems if each.where in ours]
        if told:
            fail("\n".join(told), status=2)
        advice = "(to go round it, name both --url and --fleet)"
        fail(f"the configuration cannot be used {advice}\n{error}")


def _unusable(origin: str, why: str) -> NoReturn:
    fail(f"{origin}: the URL of the store {why}", status=2 if origin == "--url" else 1)


def _run(target: Target, asked: Coroutine[Any, Any, T]) -> T:
    """Ask the store; what is wrong with it or its URL ends the command."""
    import asyncio

    from proxy.store.ops import StoreUnusable

    try:
        with _quiet():
            return asyncio.run(asked)
    except StoreUnusable as error:
        detail, fix = _explained(target, error.trouble)
        what = f"{target.shown}: {error.trouble.kind.value}: {detail}"
        fail(f"{printable(what)}\n  fix: {printable(fix)}")
    except ValueError as error:
        _unusable(target.origin, f"cannot be used: {error}")
    except TypeError as error:  # redis-py hands options of the URL to a constructor
        if not (unknown := re.search(r"unexpected keyword argument '(.+)'", str(error))):
            raise
        _unusable(target.origin, f"has an unknown option behind the question mark: {unknown[1]!r}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Log lines are for the log of a proxy; here they would stand between the data."""
    import structlog

    configured, before = structlog.is_configured(), structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    try:
        yield
    finally:
        if configured:
            structlog.configure(**before)
        else:
            structlog.reset_defaults()


def _explained(target: Target, trouble: "Trouble") -> tuple[str, str]:
    """What is wrong, and how to mend it."""
    from proxy.store.trouble import TroubleKind

    detail, fix = trouble.detail.rstrip("."), trouble.advice
    if target.embedded and trouble.kind is TroubleKind.UNREACHABLE:
        if "Permission denied" in trouble.detail:
            detail = f"the embedded store belongs to another user ({detail})"
            fix = "run this as that user: sudo -u slotgate slotgate store ..."
        else:
            detail = f"no embedded store runs here ({detail})"
            fix = "it runs while slotgate does: start slotgate; or name the store with --url, or --config" + _trials()
    elif target.origin == "--url":
        fix = fix.replace("store.url", "--url")
    return detail, fix


def _trials() -> str:
    """The stores of each `slotgate up` or `slotgate demo` that this user runs."""
    from proxy.store import EmbeddedStore
    from proxy.trial import running_sockets

    urls = [EmbeddedStore(path.parent).url for path in running_sockets()]
    return f"; running here as a trial: {', '.join(f'--url={shlex.quote(url)}' for url in urls)}" if urls else ""


def _on_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _agreed(question: str) -> bool:
    """Asked on stderr; click's own question puts a piece of itself on stdout, where data is."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        tell("")
    return answer.strip().lower() in {"y", "yes"}


def _named(target: Target) -> dict[str, Any]:
    return {"url": target.shown, "embedded": target.embedded, "fleet": target.fleet}


def _place(target: Target) -> str:
    return f"{target.shown} ({target.origin})"


def _keys(count: int) -> str:
    return f"{count} {'key' if count == 1 else 'keys'}"


def _proxies(names: tuple[str, ...]) -> str:
    return f"{len(names)} {'proxy' if len(names) == 1 else 'proxies'} ({printable(', '.join(names))})"


def _latency(took: "Latency") -> str:
    return f"{took.p50_ms:.2f} ms, 99 of 100 within {took.p99_ms:.2f} ms"
