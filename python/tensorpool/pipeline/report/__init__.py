"""A pipeline's tables as one page: `write(root, "report.html")`. Needs no Spark."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .collect import collect
from .figures import Report
from .page import page

__all__ = ["Report", "collect", "page", "write"]


def write(root: str | os.PathLike[str], out: str | os.PathLike[str], *, samples: int = 4) -> Report:
    """Writes the page of the pipeline at `root` to `out`, whole or not at all, and gives what is on it.

    `samples` frames of each stream are shown; 0 leaves them out, for pages that leave the house.
    """
    report = collect(Path(root), samples=samples)
    target = Path(out)
    text = page(report).encode()
    # Private, as everything of ours: who may see the frames is the owner's to say.
    fd, name = tempfile.mkstemp(dir=target.absolute().parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(text)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return report
