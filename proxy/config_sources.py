"""Where configuration values come from: layers, the origin of each value, and every problem at once.

Later layers win: defaults, /etc/slotgate/config.toml, /etc/slotgate/conf.d/*.toml, the user's own file (not for root),
or only the named file instead of all these; then SLOTGATE_* variables, then flags. Knows no meaning of an option.
"""

import contextlib
import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_origin

import msgspec
from pydantic import ValidationError

from proxy.config import BackendConfig, Config
from proxy.config_rules import backend_problems, loop_problems, section_problems, shares_store
from proxy.config_section import Section
from proxy.config_tree import (
    KeyPath,
    dotted,
    field_at,
    is_list_of_sections,
    is_table_of_values,
    leaf_field,
    leaves,
    section_at,
    section_of,
)
from proxy.toml_lines import key_lines, secretless

ETC = Path("/etc/slotgate")
ENV_PREFIX = "SLOTGATE_"
CONFIG_VARIABLE = "SLOTGATE_CONFIG"
"""Names the configuration file, as --config does."""

FLAGS = {
    "listen": "--listen",
    "backends": "--backend",
    "store.url": "--store",
    "state_dir": "--state-dir",
    "log.level": "--log-level",
    "log.format": "--log-format",
}
"""Dotted key of each option that has a flag."""

NO_BACKENDS = """name at least one engine:
    slotgate serve --backend=http://127.0.0.1:11435          # one that runs already; repeat the flag for more
or in a configuration file:
    [[backends]]
    engine = "llama-server"                                  # one per GPU, started by slotgate
    model = "/srv/models/model.gguf\""""


class Problem(msgspec.Struct, frozen=True):
    """One thing wrong with the configuration."""

    where: str
    """`FILE:LINE`, `environment SLOTGATE_X` or `flag --x`; empty where nothing was given."""
    key: str
    """Dotted key; empty where a whole file is meant."""
    what: str
    fix: str

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.where, self.key) if part)
        return f"{place}: {self.what}\n  fix: {self.fix}" if place else f"{self.what}\n  fix: {self.fix}"


class ConfigError(Exception):
    """The configuration cannot be used; `problems` lists everything that is wrong with it."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class LoadedConfig(msgspec.Struct, frozen=True):
    """A valid configuration and where each of its values came from."""

    config: Config
    origins: dict[str, str]
    """Dotted key (`limits.max_waiting`, `backends[0].url`) -> `default`, `FILE:LINE`, `environment SLOTGATE_X` or
    `flag --x`."""
    files: tuple[Path, ...] = ()
    """Files that were read, in their order."""


class _Layers:
    """The merged values so far, with the place of each."""

    def __init__(self) -> None:
        self.values: dict[str | int, Any] = {}
        self.places: dict[KeyPath, str] = {}
        self.problems: list[Problem] = []
        self.unread = False
        """A file could not be read: what else is missing may have been in it."""

    def merge(
        self, data: Mapping[str, Any], places: Mapping[KeyPath, str], fallback: str, *, join: bool = False
    ) -> None:
        """Lay `data` over the values. Tables merge key by key; lists replace, but [[backends]] are added if `join`."""
        for path, value in leaves(data):
            known = self.values.get("backends") if join and path == ("backends",) else None
            if isinstance(known, list) and isinstance(value, list):
                start = len(known)
                self._set(path, known + value)
            else:
                start = 0
                self._forget(path)
                self._set(path, value)
            self.places[path] = places.get(path, fallback)
            depth = len(path)
            for inner, place in places.items():
                if len(inner) > depth and inner[:depth] == path:
                    index = inner[depth]
                    moved = index + start if isinstance(index, int) else index
                    self.places[(*path, moved, *inner[depth + 1 :])] = place

    def _forget(self, path: KeyPath) -> None:
        for known in [known for known in self.places if known[: len(path)] == path]:
            del self.places[known]

    def _set(self, path: KeyPath, value: Any) -> None:
        table: dict[str | int, Any] = self.values
        for part in path[:-1]:
            inner = table.setdefault(part, {})
            if not isinstance(inner, dict):
                inner = table[part] = {}
            table = inner
        table[path[-1]] = value

    def place(self, path: KeyPath) -> str:
        """Where a value was given: its own place, else that of what contains it, else of what is in it; or empty."""
        for length in range(len(path), 0, -1):
            if place := self.places.get(path[:length]):
                return place
        return next((place for known, place in self.places.items() if known[: len(path)] == path), "")


def load_config(
    flags: Mapping[str, object],
    *,
    config_file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    etc: Path | None = None,
    root: bool | None = None,
    need_backends: bool = True,
) -> LoadedConfig:
    """Find, merge and check the configuration.

    `flags` maps dotted keys (see `FLAGS`) to values; None means not given. `root` is whether the process runs as root
    (default: asked of the system): then the user's own file is not read. `etc` is in place of /etc/slotgate.

    Raises:
        ConfigError: with every problem of every layer.
    """
    layers = _Layers()
    etc = ETC if etc is None else etc
    if config_file is None and environ.get(CONFIG_VARIABLE):
        config_file = Path(environ[CONFIG_VARIABLE])
    files = _read_files(layers, config_file, environ, etc, root=os.geteuid() == 0 if root is None else root)
    _read_environment(layers, environ)
    for key, value in flags.items():
        if value is not None:
            path: KeyPath = tuple(key.split("."))
            layers.merge(_nested(path, value), {}, f"flag {FLAGS.get(key, key)}")
    config = None
    try:
        config = Config.model_validate(layers.values)
    except ValidationError as error:
        layers.problems += _explained(error, layers)
    backends = list(_valid_backends(layers.values.get("backends")))
    listen = str(layers.values.get("listen", Config.model_fields["listen"].default))
    between = (*backend_problems(backends), *loop_problems(listen, backends), *section_problems(layers.values))
    for place, what, fix in between:
        layers.problems.append(Problem(layers.place(place), dotted(place), what, fix))
    if config is not None and config.state_dir is not None and (file := _file_in_the_way(config.state_dir)):
        fix = "name a directory; slotgate makes it where there is none"
        layers.problems.append(Problem(layers.place(("state_dir",)), "state_dir", f"{file} is not a directory", fix))
    if need_backends and not (layers.values.get("backends") or layers.unread or shares_store(layers.values)):
        layers.problems.append(Problem("", "", "no backends are configured", NO_BACKENDS))
    if config is None or layers.problems:
        raise ConfigError(sorted(layers.problems, key=_reading_order))
    return LoadedConfig(config=config, origins=_origins(config, layers), files=tuple(files))


def default_files(environ: Mapping[str, str], etc: Path | None = None, *, root: bool) -> list[Path]:
    """The files that are read when none is named, in their order; those of conf.d exist, the others perhaps not."""
    etc = ETC if etc is None else etc
    files = [etc / "config.toml"]
    with contextlib.suppress(OSError):  # no such folder, or not ours to read: the files in it are optional
        files += sorted(path for path in (etc / "conf.d").iterdir() if path.suffix == ".toml")
    if not root:
        xdg = environ.get("XDG_CONFIG_HOME", "")
        home = Path(xdg) if xdg.startswith("/") else Path(environ.get("HOME") or "~").expanduser() / ".config"
        files.append(home / "slotgate" / "config.toml")
    return files


def _reading_order(problem: Problem) -> tuple[str, int]:
    """Files one after the other, each from its top; what came from the environment and flags after them."""
    found = re.match(r"(.*?):(\d+)(?::\d+)?$", problem.where)
    if found:
        return found[1], int(found[2])
    return ("~" if problem.where.startswith(("environment ", "flag ")) else problem.where), 0


def _file_in_the_way(directory: Path) -> Path | None:
    """What keeps a directory from being one: itself, or the first of its parents that exists, is something else."""
    with contextlib.suppress(OSError):  # not ours to see
        for path in (directory, *directory.parents):
            if path.exists():
                return None if path.is_dir() else path
    return None


def _valid_backends(values: object) -> Iterator[tuple[int, BackendConfig]]:
    for index, value in enumerate(values if isinstance(values, list) else []):
        with contextlib.suppress(ValidationError):  # told by the check of the whole
            yield index, BackendConfig.model_validate(value)


def _read_files(
    layers: _Layers, named: Path | None, environ: Mapping[str, str], etc: Path, *, root: bool
) -> list[Path]:
    if named is not None:
        return [named] if _read_file(layers, named, needed=True, join=False) else []
    files = default_files(environ, etc, root=root)
    return [path for path in files if _read_file(layers, path, needed=False, join=path.is_relative_to(etc))]


def _read_file(layers: _Layers, path: Path, *, needed: bool, join: bool) -> bool:
    """Merge one file; whether there was one to read."""
    try:
        text = path.read_bytes().decode()
        data = tomllib.loads(text)
    except FileNotFoundError:
        if needed:
            layers.unread = True
            layers.problems.append(
                Problem(str(path), "", "no such file", "name an existing file with --config, or leave --config out")
            )
        return False
    except OSError as error:
        layers.unread = True
        fix = "make it readable for this user, or name another file with --config"
        layers.problems.append(Problem(str(path), "", f"cannot be read: {error.strerror or error}", fix))
        return False
    except UnicodeDecodeError as error:
        layers.unread = True
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        layers.problems.append(Problem(f"{path}:{line}", "", "is not UTF-8 text", "save the file as UTF-8"))
        return False
    except tomllib.TOMLDecodeError as error:
        layers.unread = True
        layers.problems.append(_syntax_problem(path, text, str(error)))
        return False
    layers.merge(data, {key: f"{path}:{line}" for key, line in key_lines(text).items()}, str(path), join=join)
    return True


def _syntax_problem(path: Path, text: str, message: str) -> Problem:
    found = re.search(r"\(at line (\d+), column (\d+)\)$", message)
    line, column = (int(found[1]), int(found[2])) if found else (text.count("\n") + 1, 1)
    what = message[: found.start()].strip() if found else message.removesuffix("(at end of document)").strip()
    shown = secretless(text.splitlines()[line - 1].strip()) if line <= len(text.splitlines()) else ""
    fix = f"mend this line: {shown}" if shown else "complete the last value of the file"
    return Problem(f"{path}:{line}:{column}", "", f"not valid TOML: {what}", f"{fix}   (text values stand in quotes)")


def _variables() -> dict[str, KeyPath]:
    """Every SLOTGATE_* variable and the key that it sets."""
    found: dict[str, KeyPath] = {}

    def walk(section: type[Section], path: KeyPath) -> None:
        for name in section.model_fields:
            inner = section_at(section, name)
            if inner is not None and not is_list_of_sections(section, name):
                walk(inner, (*path, name))
            else:
                found[ENV_PREFIX + "__".join(str(part) for part in (*path, name)).upper()] = (*path, name)

    walk(Config, ())
    return found


def _read_environment(layers: _Layers, environ: Mapping[str, str]) -> None:
    variables = _variables()
    for name in sorted(environ):
        text = environ[name]
        if not name.startswith(ENV_PREFIX) or name == CONFIG_VARIABLE or not text:
            continue  # an empty variable is one that is not set: environment files cannot unset
        path = variables.get(name)
        if path is None:
            near = difflib.get_close_matches(name, [*variables, CONFIG_VARIABLE], n=1, cutoff=0.6)
            fix = f"did you mean {near[0]}?" if near else "unset it; the variables are listed in docs/configuration.md"
            if inside := [known for known in variables if known.startswith(f"{name}__")]:
                fix = f"it is a table; set its options one by one, such as {', '.join(inside[:3])}"
            if name.startswith("SLOTGATE_BACKENDS__"):
                fix = "set SLOTGATE_BACKENDS to a JSON list, or to URLs separated by commas"
            layers.problems.append(Problem(f"environment {name}", "", "unknown variable", fix))
            continue
        where = f"environment {name}"
        try:
            value: object = _from_text(path, text)
        except ValueError as error:
            layers.unread = layers.unread or path == ("backends",)
            fix = "write JSON, or items (URLs of backends, KEY=VALUE of a table) separated by commas"
            layers.problems.append(Problem(where, dotted(path), f"not valid JSON: {error}", fix))
            continue
        layers.merge(_nested(path, value), {}, where)


def _from_text(path: KeyPath, text: str) -> object:
    """The value of a variable: lists and tables are JSON or separated by commas, the rest is left to the model."""
    _, field = field_at(path)
    kind = None if field is None else get_origin(field.annotation)
    if kind not in {list, dict}:
        return text
    if text.lstrip().startswith(("[", "{")):
        decoded = json.loads(text)
        return [decoded] if isinstance(decoded, dict) and kind is list else decoded
    items = [item.strip() for item in text.split(",") if item.strip()]
    if kind is dict:
        return {key.strip(): value.strip() for key, _, value in (item.partition("=") for item in items)}
    return [{"url": item} for item in items] if path == ("backends",) else items


def _nested(path: KeyPath, value: object) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    assert isinstance(value, dict)  # noqa: S101 - a path has at least one part
    return value


def _explained(error: ValidationError, layers: _Layers) -> Iterator[Problem]:
    """Pydantic's findings, one problem per option: of a choice of types only the first finding is told."""
    seen: set[KeyPath] = set()
    for found in error.errors(include_url=False):
        path = tuple(found["loc"])
        if found["type"] == "extra_forbidden":
            yield Problem(layers.place(path), dotted(path), "unknown key", _nearest(path))
            continue
        path, field_type = leaf_field(path)
        if path in seen:
            continue
        seen.add(path)
        given = found["input"]
        what = found["msg"].removeprefix("Value error, ")
        if found["type"].startswith("int_"):
            what = "should be a whole number without a unit, such as 16384"
        if field_type is not None and field_type.choice and found["type"] != "value_error":
            what = f"should be {field_type.choice}"
        secret = path[-1] in {"api_key", "secret", "url"}
        if not secret and isinstance(given, str | int | float | bool) and repr(given) not in what:
            what = f"{given!r}: {what[0].lower()}{what[1:]}"
        advice = field_type.advice if field_type is not None else "see docs/configuration.md"
        yield Problem(layers.place(path), dotted(path), what, advice)


def _nearest(path: KeyPath) -> str:
    """Advice for an unknown key: the nearest key of its table, else the nearest of all tables."""
    name = str(path[-1])
    table = path[:-1]
    section = section_of(table)
    here = list(section.model_fields) if section is not None else []
    if near := difflib.get_close_matches(name, here, n=1, cutoff=0.6):
        return f"did you mean {dotted((*table, near[0]))}?"
    everywhere = {str(key[-1]): dotted(key) for key in _variables().values()}
    everywhere |= {key: f"backends[0].{key}" for key in BackendConfig.model_fields if key not in everywhere}
    if near := difflib.get_close_matches(name, everywhere, n=1, cutoff=0.75):
        return f"did you mean {everywhere[near[0]]}?" + (f" It does not belong in [{dotted(table)}]" if table else "")
    return f"remove it; known here: {', '.join(here)}"


def _origins(config: Config, layers: _Layers) -> dict[str, str]:
    origins: dict[str, str] = {}

    def walk(section: Section, path: KeyPath) -> None:
        for name in type(section).model_fields:
            value = getattr(section, name)
            inner = (*path, name)
            if isinstance(value, Section):
                walk(value, inner)
            elif is_list_of_sections(type(section), name) and value:
                for index, item in enumerate(value):
                    walk(item, (*inner, index))
            else:
                below = value if is_table_of_values(type(section), name) else ()
                places = dict.fromkeys([layers.place(inner), *(layers.place((*inner, key)) for key in below)])
                given = ", ".join(filter(None, places))
                origins[dotted(inner)] = given if name in section.model_fields_set else "default"

    walk(config, ())
    return origins
