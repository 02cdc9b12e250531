"""The line on which each key of a TOML text stands. Owns a scanner over valid TOML; knows nothing of slotgate's keys.

tomllib reads values but not where they stand. This only walks the text: keys and brackets are followed, values skipped.
"""

import re

Path = tuple[str | int, ...]

_SECRET = re.compile(r"""((?:key|secret|url)["']?\s*=\s*).*""", re.IGNORECASE)
"""Options that hold keys and passwords, and what follows them on a line that may be broken anywhere."""


def secretless(line: str) -> str:
    """A line of a TOML text, valid or not, without the keys and passwords in it."""
    return _SECRET.sub(r"\1...", line)


def key_lines(text: str) -> dict[Path, int]:
    """Lines (from 1) of every key, table header and array element, by path: `("backends", 0, "url")`.

    The text must be one that tomllib accepts; for any other the answer is meaningless.
    """
    return _Scan(text).document()


class _Scan:
    def __init__(self, text: str) -> None:
        self._text = text + "\n"
        self._at = 0
        self._line = 1
        self._lines: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}

    def document(self) -> dict[Path, int]:
        table: Path = ()
        while (char := self._peek()) is not None:
            if self._text.startswith("[[", self._at):
                self._advance(2)
                table = self._resolved(self._key())
                index = self._counts[table] = self._counts.get(table, -1) + 1
                table = (*table, index)
                self._lines[table] = self._line
                self._lines.setdefault(table[:-1], self._line)
                self._advance(2)
            elif char == "[":
                self._advance(1)
                table = self._resolved(self._key())
                self._lines[table] = self._line
                self._advance(1)
            else:
                self._pair(table)
        return self._lines

    def _resolved(self, key: list[str]) -> Path:
        """The path of a header: inside an array of tables it means the last element."""
        path: Path = ()
        for position, part in enumerate(key):
            path = (*path, part)
            if position < len(key) - 1 and path in self._counts:
                path = (*path, self._counts[path])
        return path

    def _pair(self, table: Path) -> None:
        path = table
        for part in self._key():
            path = (*path, part)
            self._lines.setdefault(path, self._line)
        self._advance(1)  # the equals sign
        self._value(path)

    def _key(self) -> list[str]:
        parts = []
        while True:
            char = self._peek()
            if char in {'"', "'"}:
                parts.append(self._string())
            else:
                start = self._at
                while self._text[self._at] not in " \t.=]":
                    self._at += 1
                parts.append(self._text[start : self._at])
            if self._peek() != ".":
                return parts
            self._advance(1)

    def _value(self, path: Path) -> None:
        char = self._peek()
        if char in {'"', "'"}:
            self._string()
        elif char == "[":
            self._advance(1)
            index = 0
            while self._peek() != "]":
                self._lines[(*path, index)] = self._line
                self._value((*path, index))
                index += 1
                if self._peek() == ",":
                    self._advance(1)
            self._advance(1)
        elif char == "{":
            self._advance(1)
            while self._peek() != "}":
                self._pair(path)
                if self._peek() == ",":
                    self._advance(1)
            self._advance(1)
        else:
            while self._text[self._at] not in ",]}#\n":
                self._at += 1

    def _string(self) -> str:
        """Skip a string of any of TOML's four kinds; its raw content, escapes unread."""
        quote = self._text[self._at]
        if self._text.startswith(quote * 3, self._at):
            end = self._at + 3
            while not self._text.startswith(quote * 3, end):
                end += 2 if self._text[end] == "\\" and quote == '"' else 1
            while self._text.startswith(quote, end + 3):  # up to two quotes may stand before the closing three
                end += 1
            start, end = self._at + 3, end + 3
            content = self._text[start : end - 3]
        else:
            end = self._at + 1
            while self._text[end] != quote:
                end += 2 if self._text[end] == "\\" and quote == '"' else 1
            content = self._text[self._at + 1 : end]
            end += 1
        self._line += self._text.count("\n", self._at, end)
        self._at = end
        return content

    def _advance(self, count: int) -> None:
        self._peek()
        self._at += count

    def _peek(self) -> str | None:
        """The next character that is not space or comment; None at the end."""
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "#":
                self._at = self._text.index("\n", self._at)
            elif char == "\n":
                self._line += 1
                self._at += 1
            elif char in " \t\r":
                self._at += 1
            else:
                return char
        return None
