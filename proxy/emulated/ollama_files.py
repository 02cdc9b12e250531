"""Where an emulated Ollama keeps its models: a directory, or memory that looks like one. Must not know what files mean.

Paths are relative and use slashes. Large files are sparse: they have a size, and no content.
"""

import os
import time
from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """A small file system."""

    root: str
    """What paths are told to begin with."""

    def read(self, path: str) -> bytes | None:
        """The content; None: there is no such file."""

    def write(self, path: str, data: bytes) -> None:
        """Put a file there, at once or not at all."""

    def stretch(self, path: str, size: int) -> None:
        """Make it so long, creating it if need be."""

    def size(self, path: str) -> int | None:
        """Its length in bytes; None: there is no such file."""

    def stamp(self, path: str) -> tuple[int, int] | None:
        """Changes when the file does; the first number is the time of the last change in nanoseconds since 1970."""

    def rename(self, old: str, new: str) -> bool:
        """Move a file; False: there is none."""

    def remove(self, path: str) -> None:
        """Delete a file, if it is there."""

    def names(self, under: str) -> list[str]:
        """Paths of all files below a directory."""


class MemoryFiles:
    """Gone with the process."""

    def __init__(self, root: str = "/emulated/models") -> None:
        self.root = root
        self._files: dict[str, tuple[bytes, int, int]] = {}
        """Content, size, time of the last change."""
        self._last_ns = 0

    def _put(self, path: str, data: bytes, size: int) -> None:
        self._last_ns = max(self._last_ns + 1, time.time_ns())
        self._files[path] = data, size, self._last_ns

    def read(self, path: str) -> bytes | None:
        """The content."""
        return self._files[path][0] if path in self._files else None

    def write(self, path: str, data: bytes) -> None:
        """Put a file there."""
        self._put(path, data, len(data))

    def stretch(self, path: str, size: int) -> None:
        """Make it so long."""
        self._put(path, self.read(path) or b"", size)

    def size(self, path: str) -> int | None:
        """Its length."""
        return self._files[path][1] if path in self._files else None

    def stamp(self, path: str) -> tuple[int, int] | None:
        """Changes when the file does."""
        return (self._files[path][2], self._files[path][1]) if path in self._files else None

    def rename(self, old: str, new: str) -> bool:
        """Move a file."""
        if old not in self._files:
            return False
        self._files[new] = self._files.pop(old)
        return True

    def remove(self, path: str) -> None:
        """Delete a file."""
        self._files.pop(path, None)

    def names(self, under: str) -> list[str]:
        """Paths below a directory."""
        return [path for path in self._files if path.startswith(f"{under}/")]


class DirectoryFiles:
    """A real directory, which others may use at the same time.

    Raises (all methods):
        OSError: it cannot be read or written.
    """

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self._writes = 0

    def _at(self, path: str) -> Path:
        return Path(self.root, path)

    def read(self, path: str) -> bytes | None:
        """The content."""
        try:
            return self._at(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, path: str, data: bytes) -> None:
        """Put a file there."""
        place = self._at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        self._writes += 1
        part = place.with_name(f".{place.name}.{os.getpid()}.{self._writes}")
        part.write_bytes(data)
        part.replace(place)

    def stretch(self, path: str, size: int) -> None:
        """Make it so long."""
        place = self._at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("ab") as file:
            file.truncate(size)

    def _stat(self, path: str) -> os.stat_result | None:
        try:
            return os.stat(f"{self.root}/{path}")  # noqa: PTH116 - once per request: no Path object
        except (FileNotFoundError, NotADirectoryError):
            return None

    def size(self, path: str) -> int | None:
        """Its length."""
        found = self._stat(path)
        return found.st_size if found is not None else None

    def stamp(self, path: str) -> tuple[int, int] | None:
        """Changes when the file does."""
        found = self._stat(path)
        return (found.st_mtime_ns, found.st_ino) if found is not None else None

    def rename(self, old: str, new: str) -> bool:
        """Move a file."""
        try:
            self._at(old).replace(self._at(new))
        except FileNotFoundError:
            return False
        return True

    def remove(self, path: str) -> None:
        """Delete a file."""
        self._at(path).unlink(missing_ok=True)

    def names(self, under: str) -> list[str]:
        """Paths below a directory; hidden files are others' unfinished writes."""
        found = []
        for folder, _, files in os.walk(self._at(under)):
            below = os.path.relpath(folder, self.root)
            found += [f"{below}/{name}" for name in files if not name.startswith(".")]
        return sorted(found)
