"""`slotgate config`."""

import json
import tomllib
from pathlib import Path

import pytest

from tests.proxy.cli.conftest import Slotgate


@pytest.fixture
def file(home: Path) -> Path:
    path = home / "c.toml"
    path.write_text('listen = "127.0.0.1:1"\n[[backends]]\nurl = "http://127.0.0.1:2"\napi_key = "sesame"\n')
    return path


def test_check(slotgate: Slotgate, file: Path) -> None:
    result = slotgate("config", "check", str(file))
    assert (result.exit_code, result.stdout) == (0, f"ok: {file}; 1 entry in backends\n")
    assert json.loads(slotgate("config", "check", str(file), "--json").stdout) == {
        "ok": True,
        "files": [str(file)],
        "problems": [],
        "warnings": [],
    }


def test_check_warns_of_what_is_allowed_and_not_wise(slotgate: Slotgate, file: Path) -> None:
    file.write_text(file.read_text() + '[box]\ngate = "10.0.0.1:11436"\nsecret = "open-sesame-open-sesame"\n')
    result = slotgate("config", "check", str(file))
    assert (result.exit_code, result.stdout) == (0, f"ok: {file}; 1 entry in backends\n")
    assert result.stderr.startswith(f"warning: {file}:6: box.gate: the gate at 10.0.0.1:11436 has no TLS")
    answer = json.loads(slotgate("config", "check", str(file), "--json").stdout)
    assert (answer["ok"], [warning["key"] for warning in answer["warnings"]]) == (True, ["box.gate"])


@pytest.mark.parametrize(
    "line", ["secret = open-sesame-1", 'secret = "open-sesame-2', 'secret = ["open-sesame-3"]', 'secret = "sesame"']
)
def test_secrets_are_not_shown_where_they_are_wrong(slotgate: Slotgate, file: Path, line: str) -> None:
    file.write_text(f"[box]\n{line}\n")
    result = slotgate("config", "check", str(file))
    assert result.exit_code == 1
    assert f"{file}:2" in result.stderr
    assert "sesame" not in result.stderr


def test_check_tells_every_problem(slotgate: Slotgate, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTGATE_LISTNE", "x")
    file.write_text(file.read_text() + "slotz = 2\n")
    result = slotgate("config", "check", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"{file}:5: backends[0].slotz: unknown key\n  fix: did you mean backends[0].slots?\n"
        "environment SLOTGATE_LISTNE: unknown variable\n  fix: did you mean SLOTGATE_LISTEN?\n\n2 problems\n"
    )
    answer = json.loads(slotgate("config", "check", str(file), "--json").stdout)
    assert answer["ok"] is False
    assert answer["problems"][0] == {
        "where": f"{file}:5",
        "key": "backends[0].slotz",
        "what": "unknown key",
        "fix": "did you mean backends[0].slots?",
    }


def test_show(slotgate: Slotgate, file: Path) -> None:
    plain = slotgate("config", "show", f"--config={file}")
    assert plain.exit_code == 0
    assert tomllib.loads(plain.stdout)["backends"][0]["url"] == "http://127.0.0.1:2"
    assert "sesame" not in plain.stdout
    with_origins = slotgate("config", "show", "--origin", f"--config={file}").stdout
    assert f"# {file}:1" in with_origins
    answer = json.loads(slotgate("config", "show", "--json", f"--config={file}").stdout)
    assert answer["config"]["listen"] == "127.0.0.1:1"
    assert answer["origins"]["backends[0].url"] == f"{file}:3"
    assert slotgate("config", "show").exit_code == 0  # defaults, without any backend


def test_show_of_a_broken_file(slotgate: Slotgate, file: Path) -> None:
    file.write_text("listen = \n")
    result = slotgate("config", "show", f"--config={file}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{file}:1:10: not valid TOML" in result.stderr


def test_schema(slotgate: Slotgate) -> None:
    assert "limits" in json.loads(slotgate("config", "schema").stdout)["properties"]


def test_path(slotgate: Slotgate, home: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slotgate("config", "path").stdout.startswith(f"{home}/etc/config.toml  (not there)\n")
    monkeypatch.setenv("SLOTGATE_CONFIG", str(file))
    assert slotgate("config", "path").stdout == f"{file}\n"
    assert json.loads(slotgate("config", "path", "--json").stdout) == [{"file": str(file), "exists": True}]


def test_docs(slotgate: Slotgate, home: Path) -> None:
    document = home / "doc.md"
    document.write_text("a\n<!-- options: begin -->\nold\n<!-- options: end -->\nz\n")
    assert slotgate("config", "docs", f"--update={document}").exit_code == 0
    text = document.read_text()
    assert text.startswith("a\n<!-- options: begin -->\n")
    assert text.endswith("<!-- options: end -->\nz\n")
    assert slotgate("config", "docs").stdout.strip() in text
    document.write_text("no marks")
    assert slotgate("config", "docs", f"--update={document}").exit_code == 1
