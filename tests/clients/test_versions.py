"""docs/clients.md names the versions that are tested."""

import re
from pathlib import Path

import orjson

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(?P<name>[^`]+)` \((?P<kind>[^)]+)\) \| (?P<version>\S+) \|", re.MULTILINE)


def test_the_table_has_the_versions_of_the_lock_files() -> None:
    rows = list(ROW.finditer((ROOT / "docs" / "clients.md").read_text()))
    python = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "tests" / "requirements.lock").read_text(), re.MULTILINE))
    packages = orjson.loads((Path(__file__).parent / "javascript" / "package-lock.json").read_bytes())["packages"]
    javascript = {path.removeprefix("node_modules/"): entry["version"] for path, entry in packages.items() if path}
    javascript_first = next(place for place, row in enumerate(rows) if "JavaScript" in row["kind"])
    told = [(row["name"], row["version"]) for row in rows]
    locked = [
        (name, (python if place < javascript_first else javascript)[name]) for place, (name, _) in enumerate(told)
    ]

    assert len(told) == 12, "ten clients, two of them with a plugin"
    assert told == locked
