"""Generated pages and tables of docs/reference, made from the code.

python -m tools.reference            writes them
python -m tools.reference --check    exits with status 1 if a page is out of date
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from . import configuration, messages, metrics, spark

DIRECTORY: Final = Path(__file__).parents[2] / "docs" / "reference"
PAGES: Final[dict[str, Callable[[str], str]]] = {
    "configuration.md": lambda _: configuration.render(),
    "messages.md": lambda _: messages.render(),
    "metrics.md": lambda _: metrics.render(),
    "spark.md": spark.replace_table,
}
"""File name of each page, and the function that returns its new text from its present text."""


def outdated_pages() -> dict[Path, str]:
    """The pages whose text differs from the code, with their new text."""
    outdated = {}
    for name, render in PAGES.items():
        path = DIRECTORY / name
        present = path.read_text("utf-8") if path.exists() else ""
        if (text := render(present)) != present:
            outdated[path] = text
    return outdated
