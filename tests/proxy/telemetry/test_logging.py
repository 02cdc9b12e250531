"""Log lines as they are written, in both formats, also those of libraries."""

import json
import logging
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
import structlog

from proxy.config import LogConfig
from proxy.telemetry.logging import configure, log_format
from proxy.telemetry.output import Output

Written = Callable[[], list[str]]


@pytest.fixture
def set_up(tmp_path: Path) -> Iterator[Callable[[LogConfig, Literal["json", "console"]], Written]]:
    """Configures logging to a file; what it gives reads the lines."""
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    output = Output(fd)
    root = logging.getLogger()
    handlers, level, raises = root.handlers, root.level, logging.raiseExceptions

    def start(config: LogConfig, format_: Literal["json", "console"]) -> Written:
        configure(config, output, format_=format_)

        def written() -> list[str]:
            output.close()
            return (tmp_path / "log").read_text().splitlines()

        return written

    yield start
    output.close()
    os.close(fd)
    structlog.reset_defaults()
    root.handlers, logging.raiseExceptions = handlers, raises
    root.setLevel(level)


def test_json_lines(set_up: Callable[..., Written]) -> None:
    written = set_up(LogConfig(), "json")
    log = structlog.get_logger("slotgate.test")
    log.info("backend ready", backend="gpu-0", path=Path("/x"), took_s=1.5)
    log.debug("not wanted")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it broke")
    logging.getLogger("aiohttp.server").log(logging.WARNING + 3, "odd %s", "thing")
    logging.getLogger("aiohttp.server").info("not wanted")
    first, second, third = (json.loads(line) for line in written())
    assert list(first)[:4] == ["time", "level", "event", "logger"]
    assert first["event"] == "backend ready"
    assert (first["level"], first["logger"], first["backend"], first["took_s"]) == (
        "info",
        "slotgate.test",
        "gpu-0",
        1.5,
    )
    assert "/x" in first["path"]
    assert first["time"].endswith("Z")
    assert second["level"] == "error"
    assert second["exception"][0]["exc_value"] == "broken"
    assert (third["logger"], third["event"], third["level"]) == ("aiohttp.server", "odd thing", "warning")


def test_console_lines(set_up: Callable[..., Written]) -> None:
    written = set_up(LogConfig(level="debug"), "console")
    structlog.get_logger("slotgate.test").debug("backend ready", backend="gpu-0")
    logging.getLogger("asyncio").warning("slow")
    first, second = written()
    assert "backend ready" in first
    assert "backend=gpu-0" in first
    assert "slotgate.test" in first
    assert "\x1b" not in first
    assert "slow" in second


def test_levels(set_up: Callable[..., Written]) -> None:
    written = set_up(LogConfig(level="error"), "json")
    log = structlog.get_logger("slotgate.test")
    log.warning("not wanted")
    log.error("wanted")
    assert [json.loads(line)["event"] for line in written()] == ["wanted"]


def test_auto_is_console_on_a_terminal_only() -> None:
    assert log_format(LogConfig(), on_terminal=True) == "console"
    assert log_format(LogConfig(), on_terminal=False) == "json"
    assert log_format(LogConfig(format="json"), on_terminal=True) == "json"
    assert log_format(LogConfig(format="console"), on_terminal=False) == "console"


LOGGING = """
from proxy.config import LogConfig
from proxy.telemetry.logging import configure, log_format, standard_output
import structlog, sys
output, on_terminal, colors = standard_output()
configure(LogConfig(), output, format_=log_format(LogConfig(), on_terminal=on_terminal), colors=colors)
for index in range(1000):
    structlog.get_logger("slotgate.test").info("line", index=index)
output.close()
print("alive", output.gone, file=sys.stderr)
"""


def test_standard_output_in_a_process() -> None:
    result = subprocess.run([sys.executable, "-c", LOGGING], capture_output=True, text=True, check=True)
    assert [json.loads(line)["index"] for line in result.stdout.splitlines()] == list(range(1000))
    assert result.stderr == "alive False\n"


def test_a_closed_pipe_on_standard_output_does_not_kill() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [sys.executable, "-c", LOGGING], stdout=writing, stderr=subprocess.PIPE, text=True, check=True
    )
    os.close(writing)
    assert result.stderr == "alive True\n"


@pytest.mark.parametrize("form", ["json", "console"])
def test_tracebacks_do_not_tell_local_variables(
    set_up: Callable[..., Written], form: Literal["json", "console"]
) -> None:
    def fail(password: str) -> None:
        raise ValueError(f"{len(password)} letters")

    secret = secrets.token_hex(8)  # not a literal: the line of code is told, and may be
    written = set_up(LogConfig(), form)
    try:
        fail(secret)
    except ValueError:
        structlog.get_logger("slotgate.x").exception("it failed")

    text = "".join(written())
    assert "16 letters" in text
    assert secret not in text
