"""Lines of TOML keys: every form a key can take, and agreement with tomllib on which keys there are."""

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.toml_lines import Path, key_lines, secretless

TEXT = '''\
# a comment with [brackets] = "and quotes"
listen = "127.0.0.1:1"  # trailing ] } comment
fleet.inner."quo.ted" = 'x = [1]'

[limits]
max_waiting = 5

note = """
first line
[not.a.table]
still "text" \\""" end"""
after = 1

[[backends]]
url = "http://a:1"
gpus = [
  "GPU-a",
  # between
  "GPU-b", ]
[backends.restart]
budget = 3

[[backends]]
restart = { budget = 1, backoff_s = 2.5 }
env = { "A" = "#", B = '}' }
last = \'\'\'
'quoted\'\'\'\'
end = 2026-01-01T00:00:00Z
'''


def test_lines_of_every_form() -> None:
    lines = key_lines(TEXT)
    expected: dict[Path, int] = {
        ("listen",): 2,
        ("fleet", "inner", "quo.ted"): 3,
        ("limits",): 5,
        ("limits", "max_waiting"): 6,
        ("limits", "note"): 8,
        ("limits", "after"): 12,
        ("backends", 0): 14,
        ("backends", 0, "url"): 15,
        ("backends", 0, "gpus"): 16,
        ("backends", 0, "gpus", 1): 19,
        ("backends", 0, "restart"): 20,
        ("backends", 0, "restart", "budget"): 21,
        ("backends", 1): 23,
        ("backends", 1, "restart", "backoff_s"): 24,
        ("backends", 1, "env", "B"): 25,
        ("backends", 1, "end"): 28,
    }
    assert {path: lines.get(path) for path in expected} == expected


def test_array_of_inline_tables_over_lines() -> None:
    lines = key_lines(
        'backends = [\n  {url = "http://a:1"},\n  {url = "http://b:1",\n slots = 2},\n]\n'.replace(
            ",\n slots", ", slots"
        )
    )
    assert lines[("backends", 1, "slots")] == 3
    assert lines[("backends",)] == 1


def paths_of(value: Any, path: Path = ()) -> set[Path]:
    """Every path in a decoded document."""
    found: set[Path] = {path} if path else set()
    if isinstance(value, dict):
        for key, item in value.items():
            found |= paths_of(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found |= paths_of(item, (*path, index))
    return found


def test_finds_the_keys_that_tomllib_finds() -> None:
    assert set(key_lines(TEXT)) == paths_of(tomllib.loads(TEXT))


@given(st.lists(st.text(alphabet="ab\"'#[]{}=,.\\\n ", max_size=12), max_size=6))
def test_values_never_confuse_it(values: list[str]) -> None:
    escaped = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    text = "".join(f'k{index} = """{value}"""\n' for index, value in enumerate(escaped))
    tomllib.loads(text)
    line = 1
    for index, value in enumerate(escaped):
        assert key_lines(text)[(f"k{index}",)] == line
        line += 1 + value.count("\n")


def test_empty_and_comment_only() -> None:
    assert key_lines("") == {}
    assert key_lines("# only this") == {}


def test_lines_can_be_shown_without_their_secrets() -> None:
    assert secretless('listen = "a"  # url') == 'listen = "a"  # url'
    for line in (
        'secret = "x1" # y',
        "'secret'=x1",
        'a = { api_key = "x1", b = 1',
        "API_KEY = x1",
        'url = "redis://u:x1@h',
    ):
        shown = secretless(line)
        assert "x1" not in shown
        assert shown.endswith("...")
