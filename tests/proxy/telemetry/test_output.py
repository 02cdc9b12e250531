"""Lines reach the descriptor whole and in order; a slow, full or vanished reader never blocks or kills the writer."""

import os
import threading
from pathlib import Path

import pytest

from proxy.telemetry.output import Output
from tests.wait import until_sync


def test_lines_arrive_in_order_and_close_flushes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    output = Output(fd, linger_s=30)  # long: it is close that writes
    lines = [b"line %d\n" % index for index in range(5000)]
    for line in lines:
        output.write(line)
    output.close()
    os.close(fd)
    assert path.read_bytes() == b"".join(lines)
    assert output.lost == 0


def test_lines_arrive_without_close(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    output = Output(fd, linger_s=0.001)
    for round_number in range(3):
        output.write(b"x\n")
        until_sync(lambda n=round_number: path.read_bytes() == b"x\n" * (n + 1), "the line")  # type: ignore[misc]
    output.close()
    os.close(fd)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_reader_that_does_not_read_costs_lines_not_time(blocking: bool) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, blocking)
    output = Output(writing, limit_bytes=100_000, linger_s=0.001)
    for _ in range(3000):
        output.write(b"x" * 999 + b"\n")  # more than pipe and buffer hold; a blocking write would hang here
    until_sync(lambda: output.lost > 0, "lines lost")
    lost = output.lost
    received = bytearray()

    def read_all() -> None:
        while chunk := os.read(reading, 65536):
            received.extend(chunk)

    reader = threading.Thread(target=read_all)
    reader.start()
    until_sync(lambda: len(received) >= 100_000, "the reader to catch up")
    output.write(b"after\n")
    output.close()
    os.close(writing)
    reader.join(5)
    os.close(reading)
    assert received.endswith(b"after\n")
    assert b'"event":"log lines lost"' in received
    assert received.count(b"x\n") + lost == 3000


def test_a_reader_that_went_away_is_given_up() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    output = Output(writing, linger_s=0.001)
    output.write(b"one\ntwo\n")
    until_sync(lambda: output.gone, "the end of the output")
    output.write(b"three\n")
    assert output.lost == 3
    output.close()
    os.close(writing)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_waited_for_until_close() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    output = Output(fd, linger_s=0.001)
    output.write(b"one\n")
    output.write(b"two\n")
    gone_before = output.gone
    output.close()
    assert (gone_before, output.gone, output.lost) == (False, True, 2)
    os.close(fd)
