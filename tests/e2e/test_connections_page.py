"""docs/reference/connections.md lists all modes, events, outcomes and error codes."""

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
    """Names in the first column of the table below a heading."""
    section = PAGE.read_text("utf-8").partition(f"## {heading}")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))


def test_page_lists_every_mode() -> None:
    assert first_column("Modes of") == set(get_args(Mode))


def test_page_lists_every_event() -> None:
    documented = Event.__doc__ or ""
    in_rust = set()
    for source in (ROOT / "crates" / "dataplane" / "src").rglob("*.rs"):
        text = source.read_text("utf-8").partition("#[cfg(test)]")[0]
        in_rust |= set(re.findall(r"(?:event|end|push|say)\([^;]*?\"([a-z]+(?:_[a-z]+)*)\"", text))
        # Events of a ConsumerConfig are named in a match and pushed below it.
        in_rust |= set(re.findall(r"Change::\w+(?:\(\w+\))? => \{?\s*\(\"([a-z]+(?:_[a-z]+)*)\",", text))
    page = first_column("Events")
    assert page == in_rust
    assert all(kind in documented for kind in page), "the docstring of Event lists them too"


def test_page_lists_every_outcome() -> None:
    assert first_column("Outcomes of an offer") == set(Outcome)


def test_page_lists_every_error_code() -> None:
    assert first_column("Refusals: `AttachError`") == {*lease.REMEDIES, "NO_ANSWER"}
