"""Ten streams, real processes, drops made on purpose at each place: model and ledger tell them all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import tensorpool as tp
from tensorpool.cli import cli
from tensorpool.monitor.ledger import Verdict
from tensorpool.monitor.listener import SystemMonitor
from tensorpool.monitor.snapshot import StreamState
from tests.remote import Remote


def test_ten_streams_with_known_drops_are_seen_as_they_are(
    hub: tp.Context,
    station: Callable[[], Remote],
    free_stream_ids: Callable[[], int],
    tmp_path: Path,
) -> None:
    sources, readers, scribe = station(), station(), station()
    plain, large, claimed, lonely, late, newest, slow, holed, taped, made = (
        free_stream_ids() for _ in range(10)
    )
    with SystemMonitor(hub.connection) as live:
        for stream_id in (plain, large, claimed, lonely, newest, slow, holed):
            sources.call("produce", stream_id=stream_id, name=f"s{stream_id}")
        for stream_id in (late, taped):
            sources.call("produce", stream_id=stream_id, nslots=8)
        # Nobody listens on any descriptor stream of this media driver yet.
        alone = sources.call("offer", stream_id=lonely, count=7)
        assert alone == {"not_connected": 7}

        ids: dict[str, int] = {}
        wishes: list[tuple[str, int, dict[str, Any]]] = [
            ("plain-1", plain, {}),
            ("plain-2", plain, {}),
            ("large", large, {}),
            ("claimed", claimed, {}),
            ("lonely", lonely, {}),
            ("late", late, {}),
            ("newest", newest, {"policy": "latest"}),
            ("slow", slow, {"max_rate_hz": 10}),
            ("holed", holed, {}),
            ("taped", taped, {}),
        ]
        for name, stream_id, more in wishes:
            ids[name] = readers.call("consume", name=name, stream_id=stream_id, **more)
        readers.call("produce", stream_id=made, traces=True)
        scribe.call("record", out=str(tmp_path / "tape"), streams=[taped])
        assert live.watch(60, until=lambda: _is_mapped(live, taped))

        sources.call("offer", stream_id=plain, count=50)
        sources.call("offer", stream_id=large, count=10)
        assert sources.call("offer", stream_id=large, count=4, nbytes=1 << 16) == {"no_pool": 4}
        dropped_claimed = sources.call("wrap_onto_a_claim", stream_id=claimed, count=70)
        sources.call("offer", stream_id=lonely, count=5)
        sources.call("offer", stream_id=late, count=100)
        sources.call("offer", stream_id=newest, count=20)
        holes = sources.call("leave_a_hole", stream_id=holed)
        sources.call("offer", stream_id=holed, count=2)
        sources.call("offer", stream_id=slow, count=30)
        sources.call("offer", stream_id=taped, count=6)
        assert live.watch(60, until=lambda: _rows(live, taped, "recorder", "delivered") == [6])
        scribe.call("recorder_call", name="stop")
        # More than the ring has slots: most of them are gone when it goes on.
        sources.call("offer", stream_id=taped, count=50)
        scribe.call("recorder_call", name="start")
        assert live.watch(60, until=lambda: _state(live) == "recording")
        sources.call("offer", stream_id=taped, count=3)

        for name in ids:
            if name == "newest":
                assert readers.call("newest", name=name)
            else:
                readers.call("take", name=name)
        assert dropped_claimed > 0
        assert holes == 1

        truth = {name: readers.call("consumer_ledger", name=name) for name in ids}
        assert truth["plain-1"] == {"span": 50, "received": 50, "dropped": {}}
        assert truth["newest"]["dropped"] == {"skipped": 19}
        assert truth["holed"]["dropped"] == {"gap": 1}
        assert sum(truth["late"]["dropped"].values()) >= 92
        assert set(truth["slow"]["dropped"]) <= {"rate_limited"}

        def is_true() -> bool:
            rows = {(row.path, row.who): row for row in live.ledger_rows()}
            for name, number in ids.items():
                row = rows.get(("consumer", str(number)))
                want = truth[name]
                if row is None or row.delivered != want["received"]:
                    return False
            return all(row.verdict is Verdict.EXACT for row in rows.values())

        live.watch(30, until=is_true)
        rows = {(row.path, row.who): row for row in live.ledger_rows()}
        snapshot = live.snapshot()
        for name, number in ids.items():
            want, row = truth[name], rows["consumer", str(number)]
            stream = next(s for s in snapshot.streams for c in s.consumers if c.consumer_id == number)
            seen = snapshot.consumer(stream.stream_id, number)
            assert seen is not None
            assert (seen.span, seen.received, dict(seen.dropped)) == (
                want["span"],
                want["received"],
                want["dropped"],
            ), name
            assert row.verdict is Verdict.EXACT, row
            assert row.published == row.delivered + sum(row.dropped.values())
        for stream_id in (plain, large, claimed, lonely, late, newest, slow, holed, taped):
            told = sources.call("producer_ledger", stream_id=stream_id)
            seen_stream = snapshot.stream(stream_id)
            assert seen_stream is not None
            producer = seen_stream.producer
            assert producer is not None
            found = {
                "committed": producer.committed,
                "published": producer.published,
                "unpublished": dict(producer.unpublished),
                "dropped": dict(producer.dropped),
                "holes": producer.holes,
                "bytes": producer.nbytes,
            }
            assert found == told, stream_id
            assert seen_stream.state in (StreamState.LIVE, StreamState.QUIET)
        assert snapshot.stream(lonely).producer.unpublished == {"not_connected": 7}  # type: ignore[union-attr]
        assert snapshot.stream(large).producer.dropped == {"no_pool": 4}  # type: ignore[union-attr]
        [tape] = [row for row in rows.values() if row.path == "recorder"]
        recorded = scribe.call("recorded")
        assert tape.delivered == sum(one["rows"] for one in recorded)
        assert sum(tape.dropped.values()) == sum(sum(one["gaps"].values()) for one in recorded) >= 40
        assert (tape.published, tape.verdict) == (59, "exact")
        assert {one.client_id for one in snapshot.leases if one.role == "consumer"} >= set(ids.values())
        assert not snapshot.collisions
        assert not snapshot.rejected
        # What is made from a stream is known to be.
        sources.call("offer", stream_id=plain, count=3)
        readers.call("derive", stream_id=made, reader="plain-1", count=3)
        assert live.watch(60, until=lambda: live.snapshot().stream(made).sources == (plain,))  # type: ignore[union-attr]
        assert live.snapshot().stream(plain).derived == (made,)  # type: ignore[union-attr]
        readers.call("take", name="plain-2")

    shown = CliRunner().invoke(cli, ["ledger", "--json", "--aeron-dir", hub.aeron_dir])
    assert shown.exit_code == 0, shown.output
    printed: list[dict[str, Any]] = json.loads(shown.stdout)
    # Target is limited and does not look may have something before it, or not: nobody can tell.
    open_ones = [row["who"] for row in printed if row["verdict"] != "exact"]
    assert open_ones in ([], [str(ids["slow"])])
    assert {row["path"] for row in printed} == {"producer", "consumer", "recorder"}


def _is_mapped(live: SystemMonitor, stream_id: int) -> bool:
    """The reader and the recorder."""
    stream = live.snapshot().stream(stream_id)
    return stream is not None and len(stream.consumers) == 2


def _state(live: SystemMonitor) -> str:
    found = live.snapshot().recorders
    return found[0].state if found else ""


def _rows(live: SystemMonitor, stream_id: int, path: str, field: str) -> list[int]:
    return [
        getattr(row, field) for row in live.ledger_rows() if (row.stream_id, row.path) == (stream_id, path)
    ]
