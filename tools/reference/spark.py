"""The table of Spark options in docs/reference/spark.md."""

from __future__ import annotations

import re
from typing import Final

from tensorpool.spark.options import TABLE

_HEADER: Final = "| option | for | default | |\n|---|---|---|---|\n"
_USES: Final = ("read", "readStream", "write", "writeStream")


def render_table() -> str:
    """The table of all options."""
    lines = []
    for option in TABLE:
        uses = ", ".join(sorted(option.uses, key=_USES.index))
        lines.append(f"| `{option.name}` | {uses} | {option.default_text} | {option.doc} |\n")
    return _HEADER + "".join(lines)


def replace_table(page: str) -> str:
    """The page with the present table. Raises ValueError for a page without one."""
    pattern = re.compile(re.escape(_HEADER) + r"(?:\|.*\n)*")
    if not pattern.search(page):
        raise ValueError(f"the page has no table of options; add the header {_HEADER!r}")
    return pattern.sub(lambda _: render_table(), page, count=1)
