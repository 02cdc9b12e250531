"""What each key of the policy takes and means, and what is wrong with a value for it. Owns no value and no file."""

import ast
import difflib
import functools
import inspect
import textwrap
from collections.abc import Iterator, Mapping

import msgspec

from proxy.config_tree import toml_value
from scheduler.policy import Policy
from scheduler.presets import PRESETS, Value

OF_THE_CONFIGURATION = {"max_waiting": "limits.max_waiting", "max_attempts": "limits.max_attempts"}
"""Keys that only the configuration sets, and its options for them."""


class PolicyProblem(msgspec.Struct, frozen=True):
    """One thing wrong with what is wanted of the policy."""

    key: str
    what: str
    fix: str

    def __str__(self) -> str:
        place = f"{self.key}: " if self.key else ""
        return f"{place}{self.what}" + (f"\n  fix: {self.fix}" if self.fix else "")


class PolicyError(ValueError):
    """The policy cannot be changed like that; `problems` lists everything that is wrong."""

    def __init__(self, problems: list[PolicyProblem]) -> None:
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


@functools.cache
def fields() -> dict[str, msgspec.inspect.Field]:
    """The keys that can be set, in their order, with the type and range of each."""
    info = msgspec.inspect.type_info(Policy)
    assert isinstance(info, msgspec.inspect.StructType)  # noqa: S101 - Policy is a struct
    return {field.name: field for field in info.fields if field.name != "version"}


@functools.cache
def documentation() -> dict[str, str]:
    """What each key means, on one line; empty where the source is not there to be read."""
    try:
        [table] = ast.parse(textwrap.dedent(inspect.getsource(Policy))).body
    except (OSError, ValueError):
        return {}
    assert isinstance(table, ast.ClassDef)  # noqa: S101 - as above
    found = {}
    for before, after in zip(table.body, table.body[1:], strict=False):
        match before, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def takes(key: str) -> str:
    """What a key takes, in words: `a number from 0 to 1`."""
    match fields()[key].type:
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.LiteralType(values=values):
            return " or ".join(map(str, values))
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType() as kind:
            noun = "a whole number" if isinstance(kind, msgspec.inspect.IntType) else "a number"
            low = f"above {kind.gt:.12g}" if kind.gt is not None else f"from {kind.ge or 0:.12g}"
            high = kind.le if kind.le is not None else kind.lt
            return f"{noun} {low}" + ("" if high is None else f" to {high:.12g}")
        case other:
            raise TypeError(f"policy key {key} has a type without words: {other}")


def checked(key: str, given: object) -> Value:
    """A value for a key, converted to its type; text is read as on a command line.

    Raises:
        PolicyError: there is no such key, it is the configuration's, or the value is out of its range.
    """
    if key in OF_THE_CONFIGURATION:
        option = OF_THE_CONFIGURATION[key]
        raise _refused(key, "is the configuration's to set", f"set {option} there, then reload or restart slotgate")
    if key not in fields():
        raise _refused(key, "unknown key", nearest(key))
    is_text = isinstance(given, str)
    try:
        value = msgspec.convert(given, Policy.__annotations__[key], strict=not is_text)
    except msgspec.ValidationError:
        what = f"{given if is_text else _shown(given)} is not {takes(key)}"
        advice = f"{documentation().get(key, '')} Default: {toml_value(default(key))}"
        raise _refused(key, what, advice.strip()) from None
    assert isinstance(value, bool | int | float | str)  # noqa: S101 - those are the types of a policy's keys
    return value


def known_preset(name: str) -> str:
    """The name of a preset.

    Raises:
        PolicyError: there is none of that name.
    """
    if name in PRESETS:
        return name
    near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.5)
    fix = f"did you mean {near[0]}?" if near else f"known: {', '.join(PRESETS)}"
    raise PolicyError([PolicyProblem("preset", f"there is none called {name!r}", fix)])


def problems_of(changes: Mapping[str, object]) -> Iterator[PolicyProblem]:
    """Everything that is wrong with a table of changes."""
    for key, given in changes.items():
        try:
            checked(key, given)
        except PolicyError as error:
            yield from error.problems


def default(key: str) -> Value:
    """A key's default."""
    value = fields()[key].default
    assert isinstance(value, bool | int | float | str)  # noqa: S101 - every key has one
    return value


def _shown(value: object) -> str:
    """A value for a message, however odd."""
    try:
        return toml_value(value)
    except TypeError:
        return repr(value)


def _refused(key: str, what: str, fix: str) -> PolicyError:
    return PolicyError([PolicyProblem(key, what, fix)])


def nearest(key: str) -> str:
    """Advice for a key that there is not."""
    near = difflib.get_close_matches(key, fields(), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else "`slotgate policy show` lists all keys"
