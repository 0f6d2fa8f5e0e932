"""docs/reference/consumer-requests.md agrees with the code: keys, events, counts of a report."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.client import ConsumerKeywords
from tensorpool.client.ledger import DROP_REASONS
from tensorpool.context import Event
from tests.e2e.pages import ROOT
from tests.remote_process import Background

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


def test_page_lists_every_key_of_standing(aeron_dir: Path, shm_base: Path) -> None:
    with (
        tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx,
        ctx.consumer(1) as consumer,
    ):
        assert first_column("How things stand") == consumer.standing().keys()


def test_page_lists_every_phase() -> None:
    assert first_column("Phases") == {phase.name for phase in tp.Phase}


def test_page_lists_every_key_of_a_latency_report(
    aeron_dir: Path, shm_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORPOOL_CONTEXT__HELLO_PERIOD", "100ms")
    with (
        tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx,
        ctx.producer(1) as producer,
        ctx.consumer(1) as consumer,
    ):
        frames = Background(lambda stop: send_frames(producer, consumer, stop))
        events = ctx.status_events(timeout=60)
        event = next(event for event in events if (event.tag, event.key) == ("service:consumer:1", "latency"))
        frames.stop()
    rows = re.findall(r"^\| (`.*?) \|", section("Latency"), re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == json.loads(str(event.value)).keys()


def send_frames(producer: tp.Producer, consumer: tp.Consumer, stop: threading.Event) -> None:
    """Offers and polls frames until `stop`."""
    while not stop.wait(0.005):
        producer.offer(np.zeros(4))
        consumer.poll()


def test_page_lists_every_counter() -> None:
    source = (NATIVE / "reporter.rs").read_text("utf-8")
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
    fallback_events = {"fallback", "fallback_mapped", "fallback_failed", "fallback_over", "fallback_refused"}
    assert documented == {"declined", "id_collision"} | fallback_events
    assert all(f"| `{kind}` |" in connections_page for kind in documented)
    assert all(kind in (Event.__doc__ or "") for kind in documented)


def test_report_sums_the_documented_drop_reasons() -> None:
    source = (NATIVE / "consumer" / "endpoint.rs").read_text("utf-8")
    for figure in ("drops_gap", "drops_late"):
        (counted,) = re.findall(rf"{figure}: drops\(&\[(.*?)\]\)", source, re.DOTALL)
        in_code = [snake(name) for name in re.findall(r"Reason::(\w+)", counted)]
        (row,) = re.findall(rf"^\| `{figure}` \|.*\| (.*) \|$", section("Reports"), re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == in_code
        assert set(in_code) <= DROP_REASONS.keys()
