"""Text of other processes: made safe for a terminal, a line of a log or HTML, or decoded from JSON. Pure.

Names, attributes, reasons and labels come from any process that can publish. An escape sequence in them would
move the cursor, change colours or retitle the window; a line break would forge a line or a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
"""A value of JSON."""
JsonMapping: TypeAlias = Mapping[str, JsonValue]
"""A JSON object: what `to_json` returns, and what a reader has yet to check, value by value."""


def safe_text(text: str) -> str:
    """The text in one line, with escapes (`\\x1b`, `\\n`) for characters that are not printable."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def safe_lines(text: str) -> str:
    """The text with its line breaks, and escapes for all other characters that are not printable."""
    return "\n".join(map(safe_text, text.split("\n")))


def _escaped(char: str) -> str:
    # Surrogates stand for bytes that are not UTF-8; they have an escape too.
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def parse_number(text: str | bytes) -> int | None:
    """The number that decimal digits are; None for other text, and for more digits than 64 bits have."""
    return int(text) if len(text) <= 20 and text.isascii() and text.isdigit() else None


def html_table(rows: Mapping[str, object]) -> str:
    """Names and values as an HTML table, which notebooks show."""
    cells = (f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table>{''.join(cells)}</table>"
