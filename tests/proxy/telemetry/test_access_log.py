"""Request lines: golden forms, and a code for every way in which a request ends."""

import os
import re
import time
from pathlib import Path

import msgspec
import pytest

from proxy.telemetry.access_log import AccessLine, AccessLog, Phase, termination
from proxy.telemetry.output import Output
from scheduler.domain import Outcome


def line(**changes: object) -> AccessLine:
    fields: dict[str, object] = {
        "request": "r-1",
        "client": "10.0.0.7",
        "method": "POST",
        "path": "/api/chat",
        "status": 200,
        "outcome": Outcome.DONE,
        "termination": "--",
        "total_ms": 1234.5678,
        "dialect": "ollama",
        "operation": "chat",
        "model": "llama3:latest",
        "backend": "gpu-0",
        "queue_ms": 0.04,
        "first_byte_ms": 87.65,
        "attempts": 1,
        "bytes_in": 321,
        "bytes_out": 65536,
        "prompt_tokens": 100,
        "cached_tokens": 80,
        "output_tokens": 56,
    }
    return AccessLine(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "log"


def write(path: Path, log_format: str, *lines: AccessLine, at_unix_s: float = 1_700_000_000.125) -> str:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    output = Output(fd)
    log = AccessLog(output, "json" if log_format == "json" else "console")
    for one in lines:
        log.write(one, at_unix_s)
    output.close()
    os.close(fd)
    return path.read_text()


def test_json(written: Path) -> None:
    text = write(written, "json", line(predicted_cached_tokens=84, slot=3, tenant="build farm"))
    assert text == (
        '{"time":"2023-11-14T22:13:20.125Z","level":"info","event":"request","termination":"--","status":200,'
        '"outcome":"done","method":"POST","path":"/api/chat","dialect":"ollama","operation":"chat",'
        '"model":"llama3:latest","backend":"gpu-0","queue_ms":0.0,"first_byte_ms":87.7,"total_ms":1234.6,"attempts":1,'
        '"bytes_in":321,"bytes_out":65536,"prompt_tokens":100,"cached_tokens":80,'
        '"predicted_cached_tokens":84,"output_tokens":56,"slot":3,"context_tokens":null,"tenant":"build farm",'
        '"client":"10.0.0.7","request":"r-1","detail":""}\n'
    )


def test_json_of_a_request_that_never_ran(written: Path) -> None:
    refused = line(
        status=503, outcome=Outcome.REJECTED, termination="SQ", backend=None, queue_ms=300_000.0, first_byte_ms=None,
        attempts=0, prompt_tokens=None, cached_tokens=None, output_tokens=None,
    )  # fmt: skip
    fields = msgspec.json.decode(write(written, "json", refused))
    assert fields["backend"] is None
    assert fields["first_byte_ms"] is None
    assert (fields["termination"], fields["queue_ms"]) == ("SQ", 300000.0)


def test_json_stays_one_line_whatever_clients_send(written: Path) -> None:
    text = write(written, "json", line(model='a"\n\x1b[31m', path="/\r\n"), line())
    assert len(text.splitlines()) == 2
    assert [msgspec.json.decode(one)["event"] for one in text.splitlines()] == ["request", "request"]


def test_the_second_is_formatted_anew_when_it_changes(tmp_path: Path) -> None:
    first = write(tmp_path / "a", "json", line(), at_unix_s=1_700_000_000.999)
    second = write(tmp_path / "b", "json", line(), line(), at_unix_s=1_700_000_001.0)
    assert "22:13:20.999Z" in first
    assert second.count("22:13:21.000Z") == 2


def test_console(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    waiting = line(
        status=0, outcome=Outcome.CLIENT_LEFT, termination="CQ", backend=None, model=None, queue_ms=61000.0,
        first_byte_ms=None, total_ms=61000.0, attempts=0, prompt_tokens=None, output_tokens=None,
    )  # fmt: skip
    retried = line(attempts=2, cached_tokens=0, detail="after a\nreset")
    named = line(predicted_cached_tokens=84, slot=3)
    cold = line(predicted_cached_tokens=0, cached_tokens=None, slot=0)
    start = "22:13:20 200 -- POST /api/chat            llama3:latest            gpu-0          "
    timers = "queue   0.0ms  first  87.7ms  total   1.23s"
    left = "22:13:20 --- CQ POST /api/chat            -                        -              "
    assert write(written, "console", line(), waiting, retried, named, cold).splitlines() == [
        f"{start}{timers}  tokens 100 (80 cached) > 56  10.0.0.7  r-1",
        f"{left}queue  61.00s  first       -  total  61.00s  10.0.0.7  r-1",
        f"{start}{timers}  tokens 100 > 56  attempts 2  10.0.0.7  r-1  after a reset",
        f"{start}{timers}  tokens 100 (80 cached, 84 predicted) > 56  slot 3  10.0.0.7  r-1",
        f"{start}{timers}  tokens 100 > 56  slot 0  10.0.0.7  r-1",
    ]


def test_console_passes_no_control_characters_of_clients(written: Path) -> None:
    text = write(written, "console", line(model="a\x1b[31m\nb"))
    assert "\x1b" not in text
    assert "\\x1b[31m\\x0ab" in text
    assert text.count("\n") == 1


def test_every_end_has_a_code() -> None:
    codes = {(outcome, phase): termination(outcome, phase) for outcome in Outcome for phase in Phase}
    assert all(re.fullmatch(r"--|C[RQHD]|S[RQHD]|E[HDE]", code) for code in codes.values())
    assert codes[Outcome.DONE, Phase.DATA] == "--"
    assert codes[Outcome.CLIENT_LEFT, Phase.QUEUE] == "CQ"
    assert codes[Outcome.REJECTED, Phase.REQUEST] == "SR"
    assert codes[Outcome.FAILED, Phase.QUEUE] == "EH"
    assert codes[Outcome.TRUNCATED, Phase.DATA] == "ED"
    assert codes[Outcome.ENGINE_REFUSED, Phase.HEAD] == "EE"
