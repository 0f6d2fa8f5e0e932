"""docs/reference/consumer-requests.md agrees with the code: keys, events, counts of a report."""

from __future__ import annotations

import re
from pathlib import Path

import tensorpool as tp
from tensorpool.client import ConsumerKeywords
from tensorpool.client.ledger import DROP_REASONS
from tensorpool.context import Event
from tensorpool.sbe import ConsumerStatus
from tests.e2e.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "consumer-requests.md"
NATIVE = ROOT / "crates" / "dataplane" / "src"


def section(heading: str) -> str:
    """Text below a heading."""
    return PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def first_column(heading: str) -> set[str]:
    """Names in the first column of the table below a heading."""
    return set(re.findall(r"^\| `(\w+)`", section(heading), re.MULTILINE))


def snake(name: str) -> str:
    """The name in snake case."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def test_page_lists_every_key_of_state(aeron_dir: Path, shm_base: Path) -> None:
    with (
        tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx,
        ctx.consumer(1) as consumer,
    ):
        assert first_column("Present state") == consumer.state().to_json().keys()


def test_page_lists_every_phase() -> None:
    assert first_column("Phases") == {phase.name for phase in tp.Phase}


def test_page_lists_every_latency_field_of_the_status_report() -> None:
    rows = re.findall(r"^\| (`.*?) \|", section("Latency"), re.MULTILINE)
    fields = {field.python_name for field in ConsumerStatus.layout().encoded_fields}
    latency_fields = {name for name in fields if name.startswith(("latency_", "interval_", "total_"))}
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == latency_fields


def test_page_lists_every_counter() -> None:
    source = (NATIVE / "status_reporter.rs").read_text("utf-8")
    in_code = set(re.findall(r'name: "([^"]+)"', source))
    rows = re.findall(
        r"^\| (?:consumer|producer) \| (.*) \|$", section("Among the media driver's counters"), re.M
    )
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} == in_code


def test_every_request_is_an_argument() -> None:
    arguments = set(re.findall(r"^\| `(\w+)=", PAGE.read_text("utf-8"), re.MULTILINE))
    assert {"max_rate_hz", "per_consumer_stream"} <= arguments <= ConsumerKeywords.__annotations__.keys()


def test_events_are_also_on_the_connections_page() -> None:
    connections_page = (ROOT / "docs" / "reference" / "connections.md").read_text("utf-8")
    documented = first_column("Events")
    fallback_events = {
        "fallback",
        "fallback_mapped",
        "fallback_failed",
        "fallback_ended",
        "fallback_unsupported",
    }
    assert documented == {"declined", "id_collision"} | fallback_events
    assert all(f"| `{kind}` |" in connections_page for kind in documented)
    assert all(kind in (Event.__doc__ or "") for kind in documented)


def test_report_sums_the_documented_drop_reasons() -> None:
    source = (NATIVE / "consumer" / "endpoint.rs").read_text("utf-8")
    for figure in ("drops_gap", "drops_late"):
        (counted,) = re.findall(rf"{figure}: drops\(&\[(.*?)\]\)", source, re.DOTALL)
        in_code = [snake(name) for name in re.findall(r"DropReason::(\w+)", counted)]
        (row,) = re.findall(rf"^\| `{figure}` \|.*\| (.*) \|$", section("Reports"), re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == in_code
        assert set(in_code) <= DROP_REASONS.keys()
