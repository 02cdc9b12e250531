"""The command as a process: quick help, usage errors."""

import subprocess
import sys

import pytest

HEAVY = ("rich", "pydantic", "httpx", "structlog", "aiohttp", "redis", "msgspec", "asyncio")

COMMANDS = (
    "serve", "ps", "status", "list", "drain", "undrain", "restart", "explain", "policy", "config", "simulate", "up",
    "demo", "version", "workers", "store", "load", "unload", "pin", "unpin", "pull", "rm", "cp",
)  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "proxy", *arguments], capture_output=True, text=True, check=False)


def test_help_imports_nothing_heavy() -> None:
    """Start-up time is what is imported: each of these costs more than the whole help."""
    code = f"import sys, proxy.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_help_names_every_command() -> None:
    result = run("--help")
    assert result.returncode == 0
    commands = {line.split()[0] for line in result.stdout.partition("Commands:")[2].splitlines() if line.strip()}
    assert commands == set(COMMANDS)
    assert "..." not in result.stdout.partition("Commands:")[2]  # every summary fits


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("ps", "--nonsense"), ("config", "nonsense"), ("policy", "nonsense"), ()]
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", [(), *((each,) for each in COMMANDS), ("policy", "set")])
def test_arguments_that_are_no_text(command: tuple[str, ...]) -> None:
    result = run(*command, "--socket=\udcff")  # a lone surrogate stands for a byte that is no UTF-8
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"error: argument {len(command) + 1} is not UTF-8: --socket=\\xff\n"


@pytest.mark.parametrize("command", [("config", "show"), ("status",)])
def test_variables_that_are_no_text(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTGATE_STATE_DIR", "/\udcff")
    result = run(*command)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: variable SLOTGATE_STATE_DIR is not UTF-8: /\\xff\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    assert run(command, "--help").returncode == 0
