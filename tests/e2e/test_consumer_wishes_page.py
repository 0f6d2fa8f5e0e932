"""docs/reference/consumer-requests.md says what the code does: keys, events, what a report counts."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import tensorpool as tp
from tensorpool.client.ledger import DROP_REASONS
from tensorpool.context.context import Context, Event
from tensorpool.sbe import ConsumerStatus
from tests.e2e.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "consumer-requests.md"
NATIVE = ROOT / "crates" / "dataplane" / "src"


def section(heading: str) -> str:
    return PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def first_column(heading: str) -> set[str]:
    return set(re.findall(r"^\| `(\w+)`", section(heading), re.MULTILINE))


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def test_every_key_of_how_things_stand_is_there(aeron_dir: Path, shm_base: Path) -> None:
    with tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx, ctx.consumer(1) as one:
        assert first_column("How things stand") == one.standing().keys()


def test_every_phase_is_there() -> None:
    assert first_column("Phases") == {phase.name for phase in tp.Phase}


def test_every_latency_field_of_the_status_report_is_there() -> None:
    rows = re.findall(r"^\| (`.*?) \|", section("Latency"), re.MULTILINE)
    fields = {field.python_name for field in ConsumerStatus.layout().encoded_fields}
    of_latency = {name for name in fields if name.startswith(("latency_", "interval_", "total_"))}
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == of_latency


def test_the_counters_on_the_page_are_those_of_the_code() -> None:
    source = (NATIVE / "status_reporter.rs").read_text("utf-8")
    in_code = set(re.findall(r'name: "([^"]+)"', source))
    rows = re.findall(
        r"^\| (?:consumer|producer) \| (.*) \|$", section("Among the media driver's counters"), re.M
    )
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} == in_code


def test_every_wish_is_an_argument() -> None:
    named = set(re.findall(r"^\| `(\w+)=", PAGE.read_text("utf-8"), re.MULTILINE))
    assert {"max_rate_hz", "own_stream"} <= named <= inspect.signature(Context.consumer).parameters.keys()


def test_its_events_are_those_of_connections() -> None:
    of_connections = (ROOT / "docs" / "reference" / "connections.md").read_text("utf-8")
    wishes = first_column("Events")
    ways = {"fallback", "fallback_mapped", "fallback_failed", "fallback_over", "fallback_refused"}
    assert wishes == {"declined", "id_collision"} | ways
    assert all(f"| `{one}` |" in of_connections for one in wishes)
    assert all(one in (Event.__doc__ or "") for one in wishes)


def test_a_report_is_the_sum_of_the_reasons_on_the_page() -> None:
    source = (NATIVE / "consumer" / "endpoint.rs").read_text("utf-8")
    for figure in ("drops_gap", "drops_late"):
        (counted,) = re.findall(rf"{figure}: drops\(&\[(.*?)\]\)", source, re.DOTALL)
        in_code = [snake(name) for name in re.findall(r"Reason::(\w+)", counted)]
        (row,) = re.findall(rf"^\| `{figure}` \|.*\| (.*) \|$", section("Reports"), re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == in_code
        assert set(in_code) <= DROP_REASONS.keys()
