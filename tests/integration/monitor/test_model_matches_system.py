"""Ten streams of real processes with drops at every stage: model and ledger have all of them."""

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
from tests.remote_process import RemoteProcess


def test_model_and_ledger_match_ten_streams_with_known_drops(
    hub: tp.Context,
    endpoint_process: Callable[[], RemoteProcess],
    free_stream_ids: Callable[[], int],
    tmp_path: Path,
) -> None:
    sources, readers, recorder = endpoint_process(), endpoint_process(), endpoint_process()
    plain, large, claimed, unread, late, newest, slow, holed, recorded, derived = (
        free_stream_ids() for _ in range(10)
    )
    with SystemMonitor(hub.connection) as live:
        for stream_id in (plain, large, claimed, unread, newest, slow, holed):
            sources.call("produce", stream_id=stream_id, name=f"s{stream_id}")
        for stream_id in (late, recorded):
            sources.call("produce", stream_id=stream_id, nslots=8)
        # No consumer subscribes to the descriptor stream yet.
        assert sources.call("offer", stream_id=unread, count=7) == {"not_connected": 7}

        ids: dict[str, int] = {}
        consumers: list[tuple[str, int, dict[str, Any]]] = [
            ("plain-1", plain, {}),
            ("plain-2", plain, {}),
            ("large", large, {}),
            ("claimed", claimed, {}),
            ("unread", unread, {}),
            ("late", late, {}),
            ("newest", newest, {"policy": "latest"}),
            ("slow", slow, {"max_rate_hz": 10}),
            ("holed", holed, {}),
            ("recorded", recorded, {}),
        ]
        for name, stream_id, more in consumers:
            ids[name] = readers.call("consume", name=name, stream_id=stream_id, **more)
        readers.call("produce", stream_id=derived, traces=True)
        recorder.call("record", out=str(tmp_path / "recording"), streams=[recorded])
        assert live.watch(60, until=lambda: _has_both(live, recorded))

        sources.call("offer", stream_id=plain, count=50)
        sources.call("offer", stream_id=large, count=10)
        assert sources.call("offer", stream_id=large, count=4, nbytes=1 << 16) == {"no_pool": 4}
        dropped_claimed = sources.call("wrap_onto_claim", stream_id=claimed, count=70)
        sources.call("offer", stream_id=unread, count=5)
        sources.call("offer", stream_id=late, count=100)
        sources.call("offer", stream_id=newest, count=20)
        holes = sources.call("make_hole", stream_id=holed)
        sources.call("offer", stream_id=holed, count=2)
        sources.call("offer", stream_id=slow, count=30)
        sources.call("offer", stream_id=recorded, count=6)
        assert live.watch(60, until=lambda: _rows(live, recorded, "recorder", "delivered") == [6])
        recorder.call("recorder_call", name="stop")
        # More frames than slots: most of them are overwritten when the recorder starts again.
        sources.call("offer", stream_id=recorded, count=50)
        recorder.call("recorder_call", name="start")
        assert live.watch(60, until=lambda: _state(live) == "recording")
        sources.call("offer", stream_id=recorded, count=3)

        for name in ids:
            if name == "newest":
                assert readers.call("latest", name=name)
            else:
                readers.call("poll", name=name)
        assert dropped_claimed > 0
        assert holes == 1

        expected = {name: readers.call("consumer_ledger", name=name) for name in ids}
        assert expected["plain-1"] == {"span": 50, "received": 50, "dropped": {}}
        assert expected["newest"]["dropped"] == {"skipped": 19}
        assert expected["holed"]["dropped"] == {"gap": 1}
        assert sum(expected["late"]["dropped"].values()) >= 92
        assert set(expected["slow"]["dropped"]) <= {"rate_limited"}

        def matches() -> bool:
            rows = {(row.path, row.who): row for row in live.ledger_rows()}
            for name, number in ids.items():
                row = rows.get(("consumer", str(number)))
                if row is None or row.delivered != expected[name]["received"]:
                    return False
            return all(row.verdict is Verdict.EXACT for row in rows.values())

        live.watch(30, until=matches)
        rows = {(row.path, row.who): row for row in live.ledger_rows()}
        snapshot = live.snapshot()
        for name, number in ids.items():
            counts, row = expected[name], rows["consumer", str(number)]
            stream = next(s for s in snapshot.streams for c in s.consumers if c.consumer_id == number)
            consumer = snapshot.consumer(stream.stream_id, number)
            assert consumer is not None
            assert (consumer.span, consumer.received, dict(consumer.dropped)) == (
                counts["span"],
                counts["received"],
                counts["dropped"],
            ), name
            assert row.verdict is Verdict.EXACT, row
            assert row.published == row.delivered + sum(row.dropped.values())
        for stream_id in (plain, large, claimed, unread, late, newest, slow, holed, recorded):
            ledger = sources.call("producer_ledger", stream_id=stream_id)
            view = snapshot.stream(stream_id)
            assert view is not None
            producer = view.producer
            assert producer is not None
            counts = {
                "committed": producer.committed,
                "published": producer.published,
                "unpublished": dict(producer.unpublished),
                "dropped": dict(producer.dropped),
                "holes": producer.holes,
                "bytes": producer.nbytes,
            }
            assert counts == ledger, stream_id
            assert view.state in (StreamState.LIVE, StreamState.QUIET)
        assert snapshot.stream(unread).producer.unpublished == {"not_connected": 7}  # type: ignore[union-attr]
        assert snapshot.stream(large).producer.dropped == {"no_pool": 4}  # type: ignore[union-attr]
        [row] = [row for row in rows.values() if row.path == "recorder"]
        written = recorder.call("recorded")
        assert row.delivered == sum(epoch["rows"] for epoch in written)
        assert sum(row.dropped.values()) == sum(sum(epoch["gaps"].values()) for epoch in written) >= 40
        assert (row.published, row.verdict) == (59, "exact")
        assert {lease.client_id for lease in snapshot.leases if lease.role == "consumer"} >= set(ids.values())
        assert not snapshot.collisions
        assert not snapshot.rejected
        # Lineage: one stream is derived from another.
        sources.call("offer", stream_id=plain, count=3)
        readers.call("derive", stream_id=derived, consumer="plain-1", count=3)
        assert live.watch(60, until=lambda: live.snapshot().stream(derived).sources == (plain,))  # type: ignore[union-attr]
        assert live.snapshot().stream(plain).derived == (derived,)  # type: ignore[union-attr]
        readers.call("poll", name="plain-2")

    result = CliRunner().invoke(cli, ["ledger", "--json", "--aeron-dir", hub.aeron_dir])
    assert result.exit_code == 0, result.output
    printed: list[dict[str, Any]] = json.loads(result.stdout)
    # Whether frames wait for a limited consumer that does not poll cannot be known.
    not_exact = [row["who"] for row in printed if row["verdict"] != "exact"]
    assert not_exact in ([], [str(ids["slow"])])
    assert {row["path"] for row in printed} == {"producer", "consumer", "recorder"}


def _has_both(live: SystemMonitor, stream_id: int) -> bool:
    """Whether the consumer and the recorder are in the model."""
    stream = live.snapshot().stream(stream_id)
    return stream is not None and len(stream.consumers) == 2


def _state(live: SystemMonitor) -> str:
    recorders = live.snapshot().recorders
    return recorders[0].state if recorders else ""


def _rows(live: SystemMonitor, stream_id: int, path: str, field: str) -> list[int]:
    return [
        getattr(row, field) for row in live.ledger_rows() if (row.stream_id, row.path) == (stream_id, path)
    ]
