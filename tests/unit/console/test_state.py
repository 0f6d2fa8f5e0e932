"""Documents of snapshots, their differences, and the endpoints that have left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.console.state import (
    GONE_S,
    MAX_GONE,
    ConsoleOrigin,
    ConsoleState,
    Departures,
    Document,
    apply_difference,
    bridge_row,
    detail,
    difference,
    ledger_rows,
    rounded,
    stream_health,
)
from tensorpool.monitor.ledger import LedgerRow, Verdict
from tensorpool.monitor.snapshot import NoticeView, ServiceView, Snapshot, StreamState
from tests.unit.top.snapshots import consumer, stream, system

VALUES = st.one_of(
    st.integers(0, 3), st.sampled_from(["live", "quiet"]), st.lists(st.integers(0, 2), max_size=2)
)
ROWS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)
DOCUMENTS = st.dictionaries(
    st.sampled_from(["streams", "consumers"]), st.dictionaries(st.sampled_from("1234"), ROWS, max_size=4)
)


def without_empty(document: Document) -> Document:
    """What a browser can observe: members that are null are like members that are missing."""
    return {
        name: {key: {m: v for m, v in row.items() if v is not None} for key, row in rows.items()}
        for name, rows in document.items()
        if rows
    }


@given(DOCUMENTS, DOCUMENTS)
def test_difference_turns_one_document_into_the_other(before: Document, after: Document) -> None:
    change = difference(before, after)
    assert without_empty(apply_difference(before, change)) == without_empty(after)
    assert bool(change) or without_empty(before) == without_empty(after)


def test_equal_documents_have_no_difference() -> None:
    state = ConsoleState(ConsoleOrigin("lab", "/dev/shm/aeron", "1", 1))
    state.update(system(), [], 5_000)
    assert not state.update(system(), [], 5_000)


def test_only_changed_members_are_sent() -> None:
    state = ConsoleState(ConsoleOrigin("lab", "/dev/shm/aeron", "1", 1))
    before = Snapshot(1, streams=(stream(10, "camera"),))
    state.update(before, [], 1_000)
    changed = replace(before.streams[0], state=StreamState.QUIET)
    change = state.update(replace(before, streams=(changed,)), [], 1_000)
    assert change.changed["streams"] == {
        "10": {
            "state": "quiet",
            "health": "warn",
            "why": "Its producer has published no frame for more than 0 s.",
        }
    }
    assert change.removed == {}


def test_consumer_of_the_console_leaves_no_trace() -> None:
    state = ConsoleState(ConsoleOrigin("lab", "/dev/shm/aeron", "1", 1))
    notice = NoticeView(1, "consumer", 10, "consumer 502 came")
    watched = Snapshot(10, streams=(stream(10, consumers=(consumer(10, 502),)),), notices=(notice,))
    # At first its id is not known to be the console's.
    state.update(watched, [], 1_000)
    assert "10/502" in state.document["consumers"]
    row = LedgerRow(10, "consumer", "502", published=1, delivered=1)
    state.update(watched, [row], 2_000, {502})
    assert state.document["consumers"] == state.document["gone"] == state.document["ledger"] == {}
    assert state.document["notices"] == {}


def test_departed_consumer_stays_for_a_while_with_its_reason() -> None:
    departures = Departures()
    departures.update(Snapshot(0, streams=(stream(10, consumers=(consumer(10, 7),)),)), 0)
    notice = NoticeView(0, "consumer", 10, "consumer 7 left: no reports any more")
    departures.update(Snapshot(10**9, streams=(stream(10),), notices=(notice,)), 1_000)
    gone = departures.rows()["consumer 10/7"]
    assert (gone["reason"], gone["at"], gone["stream"]) == ("no reports any more", 1_000, 10)
    departures.update(Snapshot(int((GONE_S + 2) * 1e9), streams=(stream(10),)), 9_000)
    assert departures.rows() == {}


def test_consumer_that_is_back_is_not_gone() -> None:
    departures = Departures()
    present = Snapshot(0, streams=(stream(10, consumers=(consumer(10, 7),)),))
    departures.update(present, 0)
    departures.update(replace(present, now_ns=1, streams=(stream(10),)), 0)
    assert list(departures.rows()) == ["consumer 10/7"]
    departures.update(replace(present, now_ns=2), 0)
    assert departures.rows() == {}


def test_service_that_has_left_is_gone_and_one_that_became_a_driver_is_not() -> None:
    departures = Departures()
    services = tuple(
        ServiceView(f"service:{name}", name, "", 7, 0) for name in ("supervisor", "driver", "recorder:night")
    )
    departures.update(Snapshot(0, services=services), 0)
    departures.update(Snapshot(1, drivers=system().drivers, services=services[1:2]), 0)
    assert {key: row["label"] for key, row in departures.rows().items()} == {
        "service service:supervisor": "supervisor"
    }


def test_details_of_every_kind_are_found() -> None:
    snapshot = replace(system(), services=(ServiceView("service:shutter", "shutter", "", 7, 0),))
    for kind, key, pid in (
        ("driver", "service:driver", 300),
        ("bridge", "service:bridge:b1", 301),
        ("recorder", "service:recorder:r1", 302),
        ("service", "service:shutter", 7),
    ):
        view = detail(snapshot, kind, key)
        assert view is not None
        assert view["pid"] == pid
    assert (detail(snapshot, "stream", "10010") or {})["sources"] == [10000, 10001]
    assert (detail(snapshot, "consumer", "10001/503") or {})["max_rate_hz"] == 10
    for kind, key in (("stream", "x"), ("consumer", "1"), ("driver", "none"), ("service", ""), ("no", "1")):
        assert detail(snapshot, kind, key) is None


@pytest.mark.parametrize(
    ("direction", "channel", "peer"),
    [
        ("send", "aeron:udp?endpoint=10.0.0.2:40100|mtu=8192:1", "10.0.0.2"),
        ("send", "aeron:udp?mtu=8192|endpoint=[fe80::1]:40100:1", "fe80::1"),
        ("send", "aeron:udp?endpoint=lab.example.org:40100:1", "lab.example.org"),
        ("send", "aeron:udp?control=10.0.0.2:40100:1", ""),
        ("send", "", ""),
        # The endpoint of a receiver is its own.
        ("receive", "aeron:udp?endpoint=10.0.0.2:40100:1", ""),
    ],
)
def test_host_at_the_other_end_of_a_bridge(direction: str, channel: str, peer: str) -> None:
    (bridge,) = system().bridges
    mapping = replace(bridge.mappings[0], direction=direction, channel=channel)
    assert bridge_row(replace(bridge, mappings=(mapping,)))["mappings"][0]["peer"] == peer


def test_number_of_departed_is_bounded() -> None:
    departures = Departures()
    departures.update(Snapshot(0, streams=tuple(stream(n) for n in range(1, 2 * MAX_GONE))), 0)
    departures.update(Snapshot(1), 0)
    assert len(departures.rows()) == MAX_GONE


def test_mismatches_come_first_with_their_meaning() -> None:
    good = LedgerRow(1, "producer", "9", published=5, delivered=5)
    bad = LedgerRow(
        2, "consumer", "8", published=5, delivered=3, verdict=Verdict.MISMATCH, problem="2 frames"
    )
    rows = ledger_rows([good, bad])
    assert list(rows) == ["2|consumer|8", "1|producer|9"]
    assert rows["2|consumer|8"]["unaccounted"] == 2
    assert "missing without a reason" in rows["2|consumer|8"]["meaning"]
    assert "although it polls" in rows["2|consumer|8"]["meaning"]


def test_health_names_the_reason() -> None:
    assert stream_health(stream(1))[0] == "good"
    assert stream_health(stream(1, state=StreamState.STALE))[0] == "bad"
    assert stream_health(stream(1, state=StreamState.VACANT))[0] == "idle"
    losing = stream(1, consumers=(consumer(1, 2, {"late": 3}),))
    assert stream_health(losing) == ("warn", "1 of 1 consumers lose frames.")


def test_rounding_keeps_significant_digits() -> None:
    assert [rounded(value) for value in (123456.0, 0.00123456, 0.0, 29.97, None, float("nan"))] == [
        123500, 0.001235, 0, 29.97, None, None,
    ]  # fmt: skip
