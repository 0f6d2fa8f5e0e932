"""Live mode: Spark on the same host as the shared memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tensorpool as tp
from tensorpool.spark import start
from tests.unit.spark.conftest import tensor

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::ResourceWarning")]


class Camera(threading.Thread):
    """Publishes a frame every few milliseconds until it is stopped."""

    def __init__(self, producer: tp.Producer) -> None:
        super().__init__()
        self._producer = producer
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(0.005):
            self._producer.offer(tensor(1))

    def stop(self) -> None:
        self._end.set()
        self.join()


def test_live_source_reads_frames_at_most_once(
    spark: SparkSession,
    aeron_dir: Path,
    shm_base: Path,
    free_stream_id: int,
    tmp_path: Path,
    wait_until: Callable[..., Any],
) -> None:
    found: list[Any] = []
    with (
        tp.open("embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx,
        ctx.producer(free_stream_id, pools=["4KiB"], nslots=64) as producer,
    ):
        camera = Camera(producer)
        camera.start()
        frames = (
            spark.readStream.format("tensorpool")
            .options(
                mode="live",
                streams=free_stream_id,
                aeronDir=str(aeron_dir),
                includeGaps="true",
                liveWindow="500ms",
            )
            .load()
        )
        query = start(
            frames.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect())).option(
                "checkpointLocation", str(tmp_path / "checkpoint")
            )
        )
        try:
            wait_until(lambda: len({row["seq"] for row in found}) > 50 or query.exception(), timeout=120)
            assert query.exception() is None
        finally:
            query.stop()
            camera.stop()
    rows = [row for row in found if row["gap_count"] is None]
    assert len({(row["epoch"], row["seq"]) for row in rows}) == len(rows), "no frame occurs twice"
    assert all(bytes(row["payload"]) == tensor(1).tobytes() for row in rows)
    # From the first to the last, each frame was read or is in a gap.
    seqs = {row["seq"] for row in rows}
    for row in found:
        if row["gap_count"] is not None:
            assert row["gap_reason"] == "missed"
            seqs |= set(range(row["seq"], row["seq"] + row["gap_count"]))
    assert seqs == set(range(min(seqs), max(seqs) + 1))


def test_live_sink_publishes_rows_with_stable_trace_ids(
    spark: SparkSession, aeron_dir: Path, shm_base: Path, free_stream_id: int, tmp_path: Path
) -> None:
    rows = [(free_stream_id, 1, seq, bytearray(tensor(seq).tobytes()), "uint16", [4, 8]) for seq in range(20)]
    frame = spark.createDataFrame(
        rows, "stream_id bigint, epoch bigint, seq bigint, payload binary, dtype string, shape array<int>"
    ).repartition(1)
    received: list[tuple[int, Any]] = []
    with (
        tp.open("embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx,
        ctx.consumer(free_stream_id) as frames,
    ):
        end = threading.Event()

        def receive() -> None:
            while not end.is_set():
                published = frames.receive_or_none(0.05)
                if published is not None:
                    received.append((published.trace_id or 0, published.copy()))

        receiver = threading.Thread(target=receive)
        receiver.start()
        try:
            # A consumer may map a new epoch too late: the rows are published again with the same trace ids.
            for _ in range(6):
                frame.write.format("tensorpool").mode("append").options(
                    mode="live", aeronDir=str(aeron_dir), pools="4KiB", nslots=64, linger="500ms"
                ).save()
                if len(dict(received)) == 20:
                    break
        finally:
            end.set()
            receiver.join()
    traces = dict(received)
    # Repeated rows have the same trace ids, so there are twenty different ones.
    assert len(traces) == 20
    assert all(trace != 0 for trace in traces)
    assert {array.tobytes() for array in traces.values()} == {tensor(seq).tobytes() for seq in range(20)}
