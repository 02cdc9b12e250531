"""The shape of the configuration as a tree: paths, sections, leaves. Owns walking `config`'s models; reads no files."""

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from proxy.config import Config
from proxy.config_section import Section

KeyPath = tuple[str | int, ...]


class Leaf(msgspec.Struct, frozen=True):
    """What a message may say about one option."""

    choice: str
    """Where the option takes one of a few words, or a list instead: how to say so; else empty."""
    advice: str
    """Its documentation, in one line."""


def dotted(path: KeyPath) -> str:
    """`("backends", 0, "url")` as `backends[0].url`; a name of no plain letters in quotes, as in TOML."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{toml_key(part)}" if text else toml_key(part)
    return text


def section_at(section: type[Section], name: str) -> type[Section] | None:
    """The section that an option holds: directly, or as the elements of its list; None for plain values."""
    field = section.model_fields.get(name)
    if field is None:
        return None
    kind = field.annotation
    if get_origin(kind) is list:
        kind = get_args(kind)[0]
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def section_of(table: KeyPath) -> type[Section] | None:
    """The section that a path leads to, also as an element of a list or an entry of `residency.models`."""
    section: type[Section] | None = Config
    entry: type[Section] | None = None
    for part in table:
        if entry is not None:  # the part is the entry's name
            section, entry = entry, None
        elif section is not None and isinstance(part, str):
            entry = _entry_at(section, part)
            section = section_at(section, part)
    return section


def _entry_at(section: type[Section], name: str) -> type[Section] | None:
    """The section that each entry of an option's table is; None for all other options."""
    field = section.model_fields.get(name)
    if field is None or get_origin(field.annotation) is not dict:
        return None
    kind = get_args(field.annotation)[1]
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def is_list_of_sections(section: type[Section], name: str) -> bool:
    """Whether an option is an array of tables, such as [[backends]]."""
    field = section.model_fields.get(name)
    return field is not None and get_origin(field.annotation) is list and section_at(section, name) is not None


def is_table_of_values(section: type[Section], name: str) -> bool:
    """Whether an option is a table whose keys are not options themselves, such as `policy.set`."""
    field = section.model_fields.get(name)
    return field is not None and get_origin(field.annotation) is dict


def leaves(
    data: Mapping[str, Any], section: type[Section] | None = Config, path: KeyPath = ()
) -> Iterator[tuple[KeyPath, Any]]:
    """The values in a decoded document, as deep as the configuration has single tables. Unknown keys are leaves."""
    for name, value in data.items():
        inner = None
        if section is not None and isinstance(value, Mapping) and not is_list_of_sections(section, name):
            inner = section_at(section, name)
        if inner is not None:
            yield from leaves(value, inner, (*path, name))
        elif section is not None and isinstance(value, Mapping) and is_table_of_values(section, name):
            yield from (((*path, name, key), item) for key, item in value.items())
        else:
            yield (*path, name), value


def field_at(path: KeyPath) -> tuple[KeyPath, FieldInfo | None]:
    """The option that a path lies in or below, with the path cut there."""
    section: type[Section] | None = Config
    entry: type[Section] | None = None
    for length, part in enumerate(path, 1):
        if isinstance(part, int):
            continue
        if entry is not None:  # the part is the entry's name
            section, entry = entry, None
            continue
        if section is None or part not in section.model_fields:
            return path[: length - 1] or path, None
        inner = section_at(section, part)
        rest = path[length:]
        if len(rest) > 1 and (entry := _entry_at(section, part)) is not None:
            continue
        if inner is None or not rest or (is_list_of_sections(section, part) and not isinstance(rest[0], int)):
            return path[:length], section.model_fields[part]
        section = inner
    return path, None


def leaf_field(path: KeyPath) -> tuple[KeyPath, Leaf | None]:
    """The same with what there is to say about the option."""
    path, field = field_at(path)
    if field is None:
        return path, None
    kind = field.annotation
    words = [f'"{word}"' for word in _words(kind)]
    if (listed := _list_in(kind)) is not None:
        words.append(f"a {_type_text(listed)}")
    choice = " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part) if words[1:] else ""
    return path, Leaf(choice=choice, advice=documentation(field))


def documentation(field: FieldInfo) -> str:
    """The option's documentation as one line, with its default where the text does not name one."""
    text = " ".join((field.description or "").split())
    if "Default" not in text and (value := default_text(field)):
        text += f" Default: {value}."
    return text


def default_text(field: FieldInfo) -> str:
    """The default as TOML shows it; empty where there is none or it is a section."""
    value = field.get_default(call_default_factory=True)
    return "" if value is None or isinstance(value, Section) else toml_value(value)


def type_text(field: FieldInfo) -> str:
    """What an option takes, in words for the documentation."""
    return _type_text(field.annotation)


def _type_text(kind: Any) -> str:
    kind = _bare(kind)
    if get_origin(kind) in {Union, types.UnionType}:
        return " or ".join(_type_text(part) for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is Literal:
        return ", ".join(f'"{word}"' for word in get_args(kind))
    if get_origin(kind) is list:
        inner = _bare(get_args(kind)[0])
        is_table = isinstance(inner, type) and issubclass(inner, Section)
        return "list of tables" if is_table else "list of numbers" if inner is int else "list of text"
    if get_origin(kind) is dict:
        return "table of text" if get_args(kind)[1] is str else "table"
    return {str: "text", SecretStr: "text", int: "number", float: "number", bool: "true or false", Path: "path"}.get(
        kind, "table"
    )


def _bare(kind: Any) -> Any:
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return kind


def _words(kind: Any) -> tuple[str, ...]:
    kind = _bare(kind)
    if get_origin(kind) is Literal:
        return get_args(kind)
    if get_origin(kind) in {Union, types.UnionType}:
        return tuple(word for part in get_args(kind) for word in _words(part))
    return ()


def _list_in(kind: Any) -> Any:
    """The kind of list that an option takes, alone or beside others; None: it takes none."""
    kind = _bare(kind)
    if get_origin(kind) in {Union, types.UnionType}:
        return next((listed for part in get_args(kind) if (listed := _list_in(part)) is not None), None)
    return kind if get_origin(kind) is list else None


def toml_value(value: Any) -> str:
    """A value as TOML text. None has no TOML form and is not accepted."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        # TOML's basic strings are JSON's, except that DEL must be escaped too.
        return msgspec.json.encode(str(value)).decode().replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{toml_key(str(key))} = {toml_value(item)}" for key, item in value.items())
        return "{ " + inside + " }" if inside else "{}"
    raise TypeError(f"{value!r} has no TOML form")


def toml_key(key: str) -> str:
    """A key as TOML text: bare where it may be."""
    return key if key and key.isascii() and key.replace("_", "").replace("-", "").isalnum() else toml_value(key)
