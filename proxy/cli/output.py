"""Owns what happens when stdout cannot take what a command prints: one line on stderr, exit status 1.

Knows no command.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class _Broken(Exception):
    """Stdout cannot be written. No OSError: those of a broken pipe typer would take for itself, and say nothing."""

    def __init__(self, error: OSError) -> None:
        self.reason = error.strerror or str(error)
        super().__init__(self.reason)


class _Checked:
    """A stream that tells its own errors apart from all others."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise _Broken(error) from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise _Broken(error) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def checked() -> Iterator[None]:
    """Run a whole command, and see to it that what it printed has arrived.

    Raises:
        SystemExit: it has not: a full disk, a reader that left.
    """
    stdout = sys.stdout
    if stdout is None:  # closed by whoever started the command
        yield
        return
    sys.stdout = guarded = _Checked(stdout)
    try:
        try:
            yield
        finally:
            guarded.flush()
    except _Broken as error:
        with suppress(OSError):
            print(f"error: cannot write to stdout: {error.reason}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())  # else Python tries again at its end, and complains
        raise SystemExit(1) from None
    finally:
        sys.stdout = stdout
