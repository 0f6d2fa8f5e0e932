"""The navigation of the site: the kinds of page, and the pages of each in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from .stage import FILES, PROJECT_PAGES

SECTIONS: Final = {
    "tutorial": "Tutorials",
    "how-to": "How-to",
    "reference": "Reference",
    "explanation": "Explanation",
    "protocol": "Protocol",
    "decisions": "Decisions",
}
"""Directories of docs/ in the order of the navigation, with their titles."""

FIRST: Final = {
    "tutorial": ("first-steps", "write-a-service"),
    "how-to": ("consume-well", "record-and-replay", "monitor-a-system"),
    "reference": (
        "api",
        "api-recording",
        "api-recorder",
        "api-replay",
        "api-service",
        "api-pipeline",
        "commands",
        "configuration",
        "vocabulary",
    ),
    "protocol": ("README", "wire", "driver", "discovery", "service", "bridge", "decisions"),
    "decisions": ("README",),
}
"""Pages at the start of a section; the others follow by title."""

Entry = dict[str, "str | list[Entry]"]


class MisplacedPage(Exception):
    """A page is in no section, so that no reader would find it."""


def navigation(docs: Path) -> list[Entry]:
    """The entries for the staged directory. Raises MisplacedPage for a page outside all sections."""
    for page in docs.rglob("*.md"):
        section = page.relative_to(docs).parts[0]
        if section not in (*SECTIONS, FILES, "index.md"):
            raise MisplacedPage(f"{page.relative_to(docs)}: not in one of {', '.join(SECTIONS)}")
    entries: list[Entry] = [{"Home": "index.md"}]
    for directory, title in SECTIONS.items():
        first = FIRST.get(directory, ())

        def order(page: Path, first: tuple[str, ...] = first) -> tuple[int, str]:
            return (first.index(page.stem) if page.stem in first else len(first), page_title(page).lower())

        pages = sorted((docs / directory).glob("*.md"), key=order)
        if pages:
            entries.append({title: [_entry(page, docs) for page in pages]})
    entries.append({"Project": [_entry(docs / FILES / name, docs) for name in PROJECT_PAGES]})
    return entries


def _entry(page: Path, docs: Path) -> Entry:
    title = "Overview" if page.stem == "README" else page_title(page)
    return {title: str(page.relative_to(docs))}


def page_title(page: Path) -> str:
    """The first heading of a page, without markup; of a heading with a colon the part before it."""
    match = re.search(r"^# +(.+?) *$", page.read_text("utf-8"), re.MULTILINE)
    title = match[1].replace("`", "") if match else page.stem
    # "Python API: services" needs its second part.
    return title if title.startswith("Python API") else title.partition(":")[0]
