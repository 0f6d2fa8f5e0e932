"""Generated pages, tables and lists of the documentation, made from the code.

python -m tools.reference            writes them
python -m tools.reference --check    exits with status 1 if a page is out of date
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import history

from . import api, commands, configuration, messages, metrics, protocol, spark


def _api(name: str, _: str) -> str:
    return api.render(name)


DIRECTORY: Final = Path(__file__).parents[2] / "docs"
PROTOCOL_DOCUMENTS: Final = ("wire", "driver", "discovery", "service", "bridge")
PAGES: Final[dict[str, Callable[[str], str]]] = {
    **{name: partial(_api, name) for name in api.PAGES},
    "explanation/benchmarks-history.md": lambda _: history.render(),
    "reference/commands.md": lambda _: commands.render(),
    "reference/configuration.md": lambda _: configuration.render(),
    "reference/messages.md": lambda _: messages.render(),
    "reference/metrics.md": lambda _: metrics.render(),
    "reference/spark.md": spark.replace_table,
    **{
        f"protocol/{document}.md": partial(protocol.replace_requirements, document)
        for document in PROTOCOL_DOCUMENTS
    },
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
