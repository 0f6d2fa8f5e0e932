"""The pages that the site generator reads: a copy of docs/, in which every link leads to a page of the site.

Pages link to files outside docs/ too: examples, settings, other documents. On the site such a document is a
page, and such a file or directory is a page that shows its text.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROJECT_PAGES: Final = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
"""Documents beside docs/ that have a place in the navigation."""

FILES: Final = "files"
"""Directory of the site for pages from outside docs/."""

_LINK: Final = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_FENCE: Final = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_CELL_PIPE: Final = re.compile(r"^\|.*\\\|.*$", re.MULTILINE)
_LANGUAGES: Final = {
    ".py": "python",
    ".toml": "toml",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".sh": "sh",
    ".xml": "xml",
}
_MAX_SHOWN_BYTES: Final = 64 * 1024


class BrokenLink(Exception):
    """A page links to a path that does not exist, or that is not in the repository."""


def stage(root: Path, target: Path) -> None:
    """Writes the pages of the repository `root` into the empty directory `target`.

    Raises BrokenLink for a link without a target.
    """
    shutil.copytree(root / "docs", target, dirs_exist_ok=True)
    done: set[Path] = set()
    waiting = [*(root / "docs").rglob("*.md"), *(root / name for name in PROJECT_PAGES)]
    while waiting:
        source = waiting.pop()
        if source in done:
            continue
        done.add(source)
        page = target / site_path(source, root)
        page.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text("utf-8") if source.suffix == ".md" else _shown(source, root)
        page.write_text(_rewritten(text, source, root, waiting), "utf-8")


def site_path(source: Path, root: Path) -> Path:
    """Where the page of a file or directory of the repository is, below the top of the site."""
    if source.is_relative_to(root / "docs"):
        return source.relative_to(root / "docs")
    inside = source.relative_to(root)
    if source.is_dir():
        return Path(FILES) / inside / "index.md"
    return Path(FILES) / (inside if source.suffix == ".md" else inside.with_name(f"{inside.name}.md"))


def _rewritten(text: str, source: Path, root: Path, found: list[Path]) -> str:
    """The text with links to pages of the site; appends files that need a page to `found`."""
    here = site_path(source, root).parent
    # A page about a directory has links relative to that directory.
    base = source if source.is_dir() else source.parent

    def replace(match: re.Match[str]) -> str:
        address, anchor = match[2], match[3] or ""
        if re.match(r"[a-z]+:", address):
            return match[0]
        linked = Path(os.path.normpath(base / address))
        if not linked.exists() or not linked.is_relative_to(root):
            raise BrokenLink(f"{source.relative_to(root)}: {address}")
        if linked.is_relative_to(root / "docs"):
            if linked.is_dir():
                linked = _first_page(linked)
        else:
            found.append(linked)
        return f"{match[1]}{os.path.relpath(site_path(linked, root), here)}{anchor}{match[4]}"

    parts = []
    end = 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(replace, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return _CELL_PIPE.sub(_plain_pipes, "".join([*parts, _LINK.sub(replace, text[end:])]))


def _plain_pipes(line: re.Match[str]) -> str:
    """A row of a table without the backslashes that GitHub demands before pipes inside code."""
    return re.sub(r"`[^`]+`", lambda code: code[0].replace("\\|", "|"), line[0])


def _first_page(directory: Path) -> Path:
    """The page that stands for a directory of docs/."""
    readme = directory / "README.md"
    return readme if readme.exists() else min(directory.glob("*.md"))


def _shown(source: Path, root: Path) -> str:
    """A page that shows a file or lists a directory."""
    name = source.relative_to(root)
    return "\n".join([f"# `{name}`", "", *(_listing(source) if source.is_dir() else _text(source))]) + "\n"


def _listing(directory: Path) -> Iterator[str]:
    for path in sorted(directory.iterdir()):
        if not path.name.startswith((".", "__pycache__")):
            yield f"- [`{path.name}{'/' if path.is_dir() else ''}`]({path.name})"


def _text(source: Path) -> Iterator[str]:
    data = source.read_bytes()
    if len(data) > _MAX_SHOWN_BYTES or b"\0" in data:
        yield f"{len(data):,} bytes, not shown here."
        return
    yield f"````{_LANGUAGES.get(source.suffix, 'text')}"
    yield data.decode("utf-8").rstrip("\n")
    yield "````"
