"""Requirements in the pages of docs/protocol: each section lists its normative sentences with their ids."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REQUIREMENTS: Final = Path(__file__).parents[2] / "tests" / "conformance" / "requirements.csv"
_BLOCK: Final = re.compile(r"<!-- requirements (\S+) -->\n.*?<!-- /requirements -->", re.DOTALL)


def replace_requirements(document: str, text: str) -> str:
    """The page of a document with the present requirements of each section."""
    with REQUIREMENTS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["id"].startswith(f"{document}-")]

    def block(match: re.Match[str]) -> str:
        section = match[1]
        lines = [*_lines(row for row in rows if row["section"] == section)]
        body = "\n".join(["Required:", "", *lines, ""]) if lines else ""
        return f"<!-- requirements {section} -->\n{body}<!-- /requirements -->"

    return _BLOCK.sub(block, text)


def missing_sections(document: str, text: str) -> set[str]:
    """Sections that have requirements and no place for them in the page."""
    with REQUIREMENTS.open(encoding="utf-8", newline="") as file:
        sections = {row["section"] for row in csv.DictReader(file) if row["id"].startswith(f"{document}-")}
    return sections - set(_BLOCK.findall(text))


def _lines(rows: Iterator[dict[str, str]]) -> Iterator[str]:
    for row in rows:
        level = "" if row["level"] == "MUST" else f" ({row['level']})"
        deviation = row.get("deviation") or ""
        note = f" **Deviates**: [decision](../../{deviation})." if deviation else ""
        yield f"- `{row['id']}`{level} {row['summary']}{note}"
