"""docs/reference/connections.md names everything that a program can meet, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from tensorpool import Outcome
from tensorpool.client import lease
from tensorpool.context.context import Event
from tensorpool.context.driver_host import Mode

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "connections.md"


def first_column(heading: str) -> set[str]:
    """The words in code of the table's first column below a heading."""
    section = PAGE.read_text("utf-8").partition(f"## {heading}")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))


def test_every_mode_is_there() -> None:
    assert first_column("Modes of") == set(get_args(Mode))


def test_every_event_is_there() -> None:
    told = Event.__doc__ or ""
    in_rust = set()
    for source in (ROOT / "crates" / "dataplane" / "src").rglob("*.rs"):
        text = source.read_text("utf-8").partition("#[cfg(test)]")[0]
        in_rust |= set(re.findall(r"(?:event|end|push|say)\([^;]*?\"([a-z]+(?:_[a-z]+)*)\"", text))
        # What a consumer is told by its producer is named first, and said below.
        in_rust |= set(re.findall(r"Turn::\w+(?:\(\w+\))? => \{?\s*\(\"([a-z]+(?:_[a-z]+)*)\",", text))
    page = first_column("Events")
    assert page == in_rust
    assert all(kind in told for kind in page), "Event's own words name them too"


def test_every_outcome_is_there() -> None:
    assert first_column("Outcomes of an offer") == set(Outcome)


def test_every_code_is_there() -> None:
    assert first_column("Refusals: `AttachError`") == {*lease.REMEDIES, "NO_ANSWER"}
