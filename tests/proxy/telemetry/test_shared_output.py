"""Lines of several processes: whole, and telling whose they are."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

from proxy.telemetry.shared_output import SharedOutput


def written(worker: int | None, form: str, *lines: bytes) -> bytes:
    reading, writing = os.pipe()
    output = SharedOutput(writing, worker, form)  # type: ignore[arg-type]
    for line in lines:
        output.write(line)
    output.close()
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        return file.read()


def test_each_line_names_the_worker() -> None:
    text = written(3, "json", b'{"event":"a"}\n', b'{"event":"b"}\n')
    assert [json.loads(line) for line in text.splitlines()] == [
        {"worker": 3, "event": "a"},
        {"worker": 3, "event": "b"},
    ]
    assert written(3, "console", b"one\n", b"two\n") == b"[3] one\n[3] two\n"


def test_lines_of_the_main_process_are_as_they_are() -> None:
    assert written(None, "json", b'{"event":"a"}\n') == b'{"event":"a"}\n'


def test_a_line_that_is_longer_than_a_pipe_takes_at_once_arrives() -> None:
    long = b"x" * (3 * select.PIPE_BUF) + b"\n"
    assert written(None, "console", b"a\n", long, b"b\n") == b"a\n" + long + b"b\n"


def test_lines_of_several_processes_do_not_mix(tmp_path: Path) -> None:
    """A pipe with a slow reader, filled by three at once."""
    program = (
        "import sys\nfrom proxy.telemetry.shared_output import SharedOutput\n"
        "output = SharedOutput(1, int(sys.argv[1]), 'console')\n"
        "for number in range(3000): output.write(b'%05d' % number * 40 + b'\\n')\n"
        "output.close(30)\n"
    )
    reading, writing = os.pipe()
    processes = [subprocess.Popen([sys.executable, "-c", program, str(number)], stdout=writing) for number in (1, 2, 3)]
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        lines = file.read().splitlines()
    assert [process.wait() for process in processes] == [0, 0, 0]
    for number in (1, 2, 3):
        mine = [line[4:] for line in lines if line.startswith(b"[%d] " % number)]
        assert mine == [b"%05d" % count * 40 for count in range(3000)]
    assert len(lines) == 9000
