"""Labels of consumers and names of streams, from a running system to the snapshot, the ledger and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tensorpool as tp
from tensorpool.cli.ledger import ledger_table
from tensorpool.cli.output import console
from tensorpool.metrics.collect import CONSUMER_INFO, collect
from tensorpool.monitor.listener import SystemMonitor
from tensorpool.monitor.snapshot import ConsumerView
from tensorpool.top.tables import TABLES


def test_label_of_a_consumer_is_shown_everywhere(
    hub: tp.Context, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    with (
        SystemMonitor(hub.connection) as monitor,
        hub.producer(free_stream_id, name="camera-1", pools=["64KiB"]) as camera,
        hub.consumer(free_stream_id, label="viewer") as viewer,
    ):

        def reported() -> ConsumerView | None:
            camera.offer(np.zeros(4))
            viewer.poll()
            monitor.watch(0.1)
            stream = monitor.snapshot().stream(free_stream_id)
            consumers = () if stream is None else stream.consumers
            return next((each for each in consumers if each.label == "viewer"), None)

        consumer = wait_until(reported)
        assert "label='viewer'" in repr(viewer)
        snapshot, rows = monitor.snapshot(), monitor.ledger_rows()
    (row,) = [row for row in rows if row.path == "consumer"]
    assert (row.label, row.to_json()["label"], row.who) == ("viewer", "viewer", str(consumer.consumer_id))
    info = next(family for family in collect(snapshot) if family.name == CONSUMER_INFO.name)
    assert [sample.labels["label"] for sample in info.samples] == ["viewer"]
    (consumers,) = [table for table in TABLES if table.title == "consumers"]
    (shown,) = consumers.rows(snapshot)
    assert "viewer" in [column.cell(shown) for column in consumers.columns]
    assert "viewer" in consumers.filter_text(shown)
    screen = console()
    with screen.capture() as printed:
        screen.print(ledger_table(rows))
    assert f"viewer {consumer.consumer_id}" in printed.get()
