"""What people read of the configuration: TOML with origins and masked secrets, the schema, the table of options.

Reads no files and decides nothing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from proxy.config import Config
from proxy.config_rules import unfit_keys
from proxy.config_section import Section
from proxy.config_sources import ENV_PREFIX, FLAGS, LoadedConfig
from proxy.config_tree import (
    KeyPath,
    default_text,
    dotted,
    is_list_of_sections,
    section_at,
    toml_key,
    toml_value,
    type_text,
)
from proxy.endpoint import MASK, shown_url

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)


def shown(config: Config) -> dict[str, Any]:
    """The configuration as plain values, secrets masked: keys, passwords in URLs, engine variables named like keys."""
    values = config.model_dump(mode="json")
    if values["store"]["url"] is not None:
        values["store"]["url"] = shown_url(values["store"]["url"])
    if values["box"]["secret"] is not None:
        values["box"]["secret"] = MASK
    for backend in values["backends"]:
        if backend["api_key"] is not None:
            backend["api_key"] = MASK
        backend["env"] = masked_variables(backend["env"])
        backend["flags"] = masked_flags(backend["flags"])
    return values


def masked_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables, the values of those masked that are named like keys."""
    return {name: MASK if _SECRET_NAME.search(name) else text for name, text in variables.items()}


def masked_flags(flags: Iterable[str]) -> list[str]:
    """A command line, the values of those flags masked that are named like keys."""
    masked, secret_next = [], False
    for flag in flags:
        name, equals, _ = flag.partition("=")
        is_secret = name.startswith("-") and bool(_SECRET_NAME.search(name)) and not name.endswith("-file")
        masked.append(MASK if secret_next else f"{name}={MASK}" if is_secret and equals else flag)
        secret_next = is_secret and not equals
    return masked


def render_toml(loaded: LoadedConfig, *, with_origins: bool) -> str:
    """The effective configuration as a TOML file that could be loaded again, but for the masks.

    What is not set and has no fixed default stands there as a comment; what means nothing for a backend is left out.
    """
    lines: list[tuple[str, str]] = []

    def table(values: Mapping[str, Any], section: type[Section], path: KeyPath) -> None:
        inner = []
        for name, value in values.items():
            if section_at(section, name) is not None and value != []:
                inner.append(name)
            elif value is None:
                lines.append((f"# {toml_key(name)} is not set", ""))
            else:
                lines.append((f"{toml_key(name)} = {toml_value(value)}", loaded.origins.get(dotted((*path, name)), "")))
        for name in inner:
            below = section_at(section, name)
            assert below is not None  # noqa: S101 - chosen for having one
            header = ".".join(toml_key(str(part)) for part in (*path, name) if isinstance(part, str))
            if is_list_of_sections(section, name):
                for index, item in enumerate(values[name]):
                    lines.extend([("", ""), (f"[[{header}]]", "")])
                    unfit = unfit_keys(loaded.config.backends[index])
                    fitting = {key: value for key, value in item.items() if key not in unfit}
                    table(fitting, below, (*path, name, index))
            else:
                lines.extend([("", ""), (f"[{header}]", "")])
                table(values[name], below, (*path, name))

    table(shown(loaded.config), Config, ())
    if not with_origins:
        return "\n".join(text for text, _ in lines) + "\n"
    width = max((len(text) for text, origin in lines if origin and len(text) <= 60), default=0)
    return "\n".join(f"{text:<{width}}  # {origin}" if origin else text for text, origin in lines) + "\n"


def json_schema() -> dict[str, Any]:
    """JSON Schema of the configuration file, for editors."""
    schema = Config.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "slotgate configuration"}


def option_tables() -> str:
    """Every option as Markdown, one table per section: what docs/configuration.md contains."""
    parts = []
    for header, section, path in _sections(Config, ()):
        parts.append(f"### {header}\n\n{(section.__doc__ or '').strip()}\n")
        parts.append("| option | takes | default | meaning |\n|---|---|---|---|")
        for name, field in section.model_fields.items():
            if section_at(section, name) is None or is_list_of_sections(section, name):
                parts.append(_row(name, field, (*path, name)))
        parts.append("")
    return "\n".join(parts)


def _sections(section: type[Section], path: tuple[str, ...]) -> Iterator[tuple[str, type[Section], tuple[str, ...]]]:
    if not path:
        yield "Top level", section, path
    for name in section.model_fields:
        inner = section_at(section, name)
        if inner is not None:
            header = ".".join((*path, name))
            yield (f"`[[{header}]]`" if is_list_of_sections(section, name) else f"`[{header}]`"), inner, (*path, name)
            yield from _sections(inner, (*path, name))


def _row(name: str, field: FieldInfo, path: tuple[str, ...]) -> str:
    meaning = " ".join((field.description or "").split())
    if path[0] != "backends" or len(path) == 1:
        names = [f"`{ENV_PREFIX}{'__'.join(path).upper()}`"]
        names += [f"`{flag}`" for key, flag in FLAGS.items() if key == ".".join(path)]
        meaning += f" ({', '.join(names)})"
    default = default_text(field)
    cells = [f"`{name}`", type_text(field), f"`{default}`" if default else "", meaning]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
