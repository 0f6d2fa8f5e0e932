"""TOML text: literals of values, and the line number of each key of a document. Pure.

`tomllib` reads values without their positions. `line_numbers` adds these for a document that `tomllib` has
accepted. So it relies on valid syntax and only separates keys from strings, comments and nested values.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence

Path = tuple[str | int, ...]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_BARE_VALUE_END = re.compile(r"[,\]}\n#]")


def quote(text: str) -> str:
    """A TOML string. Raises UnicodeEncodeError for text that UTF-8 cannot encode."""
    text.encode()
    return '"' + "".join(_escaped(ch) for ch in text) + '"'


def _escaped(ch: str) -> str:
    if ch in _ESCAPES:
        return _ESCAPES[ch]
    return f"\\u{ord(ch):04x}" if ch < " " or "\x7f" <= ch <= "\x9f" else ch


def key(name: str) -> str:
    """A key as TOML, quoted where it has to be."""
    return name if _BARE_KEY.fullmatch(name) else quote(name)


def literal(value: object) -> str:
    """A value as TOML. `tomllib` reads it back as an equal value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key(name)} = {literal(item)}" for name, item in value.items()) + " }"
    if isinstance(value, Sequence):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    return str(value)


def line_numbers(text: str) -> dict[Path, int]:
    """Key path → line, from 1. Entries of arrays are numbered: `("driver", "streams", 0, "name")`."""
    return _Scanner(text).document()


class _Scanner:
    """One pass over a valid document; `_offset` is the position of the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0
        self._lines: dict[Path, int] = {}
        self._array_tables: dict[Path, int] = {}

    def document(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip_blank(newlines=True):
            if self._text[self._offset] == "[":
                table = self._header()
            else:
                self._pair(table)
        return self._lines

    def _header(self) -> Path:
        line = self._line()
        is_array = self._text.startswith("[[", self._offset)
        self._offset += 2 if is_array else 1
        names = self._dotted_key()
        self._offset += 2 if is_array else 1
        path: Path = ()
        for index, name in enumerate(names):
            path = (*path, name)
            if is_array and index == len(names) - 1:
                self._array_tables[path] = self._array_tables.get(path, -1) + 1
            self._lines.setdefault(path, line)
            if path in self._array_tables:
                path = (*path, self._array_tables[path])
                self._lines.setdefault(path, line)
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for name in self._dotted_key():
            path = (*path, name)
            self._lines.setdefault(path, line)
        self._offset += 1  # the equals sign
        self._skip_blank()
        self._value(path)

    def _dotted_key(self) -> list[str]:
        names = []
        while True:
            self._skip_blank()
            if self._text[self._offset] in "\"'":
                names.append(self._string())
            else:
                bare = _BARE_KEY.match(self._text, self._offset)
                assert bare is not None, "tomllib accepted it"
                self._offset = bare.end()
                names.append(bare[0])
            self._skip_blank()
            if self._text[self._offset] != ".":
                return names
            self._offset += 1

    def _value(self, path: Path) -> None:
        opening = self._text[self._offset]
        if opening in "\"'":
            self._string()
        elif opening == "[":
            self._array(path)
        elif opening == "{":
            self._offset += 1
            while self._skip_blank(newlines=True) and self._text[self._offset] != "}":
                self._pair(path)
                self._skip_blank(newlines=True)
                self._offset += self._text[self._offset] == ","
            self._offset += 1
        else:
            end = _BARE_VALUE_END.search(self._text, self._offset)
            self._offset = end.start() if end else len(self._text)

    def _array(self, path: Path) -> None:
        self._offset += 1
        index = 0
        while self._skip_blank(newlines=True) and self._text[self._offset] != "]":
            self._lines.setdefault((*path, index), self._line())
            self._value((*path, index))
            index += 1
            self._skip_blank(newlines=True)
            self._offset += self._text[self._offset] == ","
        self._offset += 1

    def _string(self) -> str:
        """Skips a string of any of the four forms and returns its value."""
        start = self._offset
        mark = self._text[start]
        closing = mark * 3 if self._text.startswith(mark * 3, start) else mark
        self._offset += len(closing)
        while not self._text.startswith(closing, self._offset):
            self._offset += 2 if mark == '"' and self._text[self._offset] == "\\" else 1
        self._offset += len(closing)
        # The text may end in up to two quotes, right before the closing three.
        while len(closing) == 3 and self._text.startswith(mark, self._offset):
            self._offset += 1
        return str(tomllib.loads(f"k = {self._text[start : self._offset]}")["k"])

    def _skip_blank(self, *, newlines: bool = False) -> bool:
        """Skips spaces, with `newlines` also line ends and comments. False at the end of the document."""
        while self._offset < len(self._text):
            ch = self._text[self._offset]
            if ch == "#" and newlines:
                end = self._text.find("\n", self._offset)
                self._offset = len(self._text) if end < 0 else end
            elif ch in " \t" or (newlines and ch in "\r\n"):
                self._offset += 1
            else:
                return True
        return False

    def _line(self) -> int:
        return self._text.count("\n", 0, self._offset) + 1
