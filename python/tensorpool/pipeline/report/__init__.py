"""Reports on the tables of a pipeline, as one HTML page: `write(root, "report.html")`. Needs no Spark."""

from __future__ import annotations

import os
from pathlib import Path

from ...durable import replace_file
from .collect import collect
from .figures import Report
from .page import page

__all__ = ["Report", "collect", "page", "write"]


def write(root: str | os.PathLike[str], out: str | os.PathLike[str], *, samples: int = 4) -> Report:
    """Writes the page of the pipeline at `root` to `out`, completely or not at all; returns its figures.

    The page shows `samples` frames of each stream; 0 for a page that is published.
    """
    report = collect(root, samples=samples)
    target = Path(out)
    # Private permissions: the page shows frames, and its owner decides who may see them.
    replace_file(target, page(report).encode(), sync=False, mode=0o600)
    return report
