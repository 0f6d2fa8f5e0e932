"""The source and the sink on a real Spark: batch and streaming queries over recordings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tensorpool as tp
from tensorpool import recording
from tensorpool.spark import lag, register, start, tensors
from tests.unit.spark.conftest import STREAM_ID, add, tensor, write

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "recording"


def load(spark: SparkSession, root: Path, **options: Any) -> DataFrame:
    return spark.read.format("tensorpool").options(**{"path": str(root), **options}).load()


def load_stream(spark: SparkSession, root: Path, **options: Any) -> DataFrame:
    return spark.readStream.format("tensorpool").options(**{"path": str(root), **options}).load()


def finish(frame: DataFrame, form: str, target: Path, checkpoint: Path, **options: Any) -> Any:
    """Runs a query to the present end of its source."""
    query = start(
        frame.writeStream.format(form)
        .options(**{"path": str(target), "checkpointLocation": str(checkpoint), **options})
        .trigger(availableNow=True)
    )
    try:
        assert query.awaitTermination(300), "the query did not end"
    finally:
        query.stop()
    return query


def test_time_of_frames_makes_windows_with_a_watermark(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    with recording.RecordingWriter(root) as writer:
        for seq in range(100):
            at_ns = 1_700_000_000_000_000_000 + seq * 100_000_000
            writer.append(tensor(seq), stream_id=STREAM_ID, epoch=1, seq=seq, receive_time_ns=at_ns)
    frames = load_stream(spark, root, includeTime="true", payload="none", maxRowsPerTrigger=20)
    windows = (
        frames.withWatermark("time", "1 second")
        .groupBy(F.window("time", "2 seconds"))
        .count()
        .select("window.start", "count")
    )
    finish(windows, "parquet", tmp_path / "windows", tmp_path / "checkpoint")
    counts = [row["count"] for row in spark.read.parquet(str(tmp_path / "windows")).collect()]
    # Ten frames a second. A window is written when the watermark of a later micro-batch has passed it.
    assert counts
    assert set(counts) == {20}


def test_query_is_started_again_when_its_source_was_too_slow(
    spark: SparkSession, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark waits 10 s for the Python process of a streaming source."""
    write(root, range(10), per_segment=20)
    slow, started = tmp_path / "slow", tmp_path / "started"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(
        "import pathlib, sys, time\n"
        f"started = pathlib.Path({str(started)!r})\n"
        "if 'pyspark.sql.streaming.python_streaming_source_runner' in sys.orig_argv:\n"
        "    with started.open('a') as file:\n"
        "        file.write('.')\n"
        "    time.sleep(12 if started.stat().st_size == 1 else 0)\n"
    )
    environment = spark.sparkContext.environment
    path = os.pathsep.join([str(slow), environment.get("PYTHONPATH", "")])
    monkeypatch.setitem(environment, "PYTHONPATH", path)
    register(spark)
    try:
        finish(load_stream(spark, root, payload="none"), "parquet", tmp_path / "out", tmp_path / "checkpoint")
    finally:
        monkeypatch.undo()
        register(spark)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 10
    assert len(started.read_text()) > 1, "the first process was too slow"


def test_source_is_registered_and_reads_a_recording(spark: SparkSession, root: Path) -> None:
    write(root, range(50), per_segment=20)
    frames = load(spark, root)
    everything = {row["seq"]: row for row in frames.collect()}
    assert sorted(everything) == list(range(50))
    assert all(np.array_equal(tensors.to_numpy(row), tensor(seq)) for seq, row in everything.items())
    # Two queries on one DataFrame, each with its own filter.
    low, high = frames.where("seq < 10"), frames.where("seq >= 35")
    assert (low.count(), high.count(), low.count(), frames.count()) == (10, 15, 10, 50)
    assert low.union(high).select("seq").distinct().count() == 25
    with pytest.raises(PySparkException, match="did you mean streams"):
        load(spark, root, strems="1")
    with pytest.raises(PySparkException, match="contains no recording"):
        load(spark, root / "nothing").count()


def test_map_applies_a_function_to_every_tensor(spark: SparkSession, root: Path) -> None:
    write(root, range(40), per_segment=15)
    frames = load(spark, root)
    means = tensors.map(frames, lambda array: float(array.mean()), "mean double")
    assert means.columns == ["stream_id", "epoch", "seq", "mean"]
    assert {row["seq"]: row["mean"] for row in means.collect()} == {
        seq: tensor(seq).mean() for seq in range(40)
    }
    inlined = tensors.inline(frames.where("seq % 7 = 0")).collect()
    assert {row["seq"]: bytes(row["payload"]) for row in inlined} == {
        seq: tensor(seq).tobytes() for seq in range(0, 40, 7)
    }
    picked = frames.where(tensors.has_dtype("uint16") & tensors.has_shape((4, None)) & tensors.has_ndim(2))
    assert picked.count() == 40
    assert frames.where(tensors.has_shape((5, None))).count() == 0


def test_stats_thumbnails_and_vectors_of_tensors(spark: SparkSession, root: Path) -> None:
    write(root, range(6))
    frames = load(spark, root)
    statistics = tensors.stats(frames).orderBy("seq").collect()
    assert [row["max"] for row in statistics] == [tensor(seq).max() for seq in range(6)]
    assert bytes(tensors.thumbnail(frames, 4).collect()[0]["png"]).startswith(b"\x89PNG")
    vector = tensors.to_ml(frames.where("seq = 3")).collect()[0]["features"]
    assert vector.toArray().tolist() == tensor(3).ravel().tolist()


def test_streaming_query_copies_a_recording_exactly_once(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    target, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    with recording.RecordingWriter(root) as writer:
        add(writer, range(30), per_segment=12)
        add(writer, range(7), stream_id=7)
        first = finish(load_stream(spark, root, maxRowsPerTrigger=15), "tensorpool", target, checkpoint)
        assert [progress["numInputRows"] for progress in first.recentProgress] == [15, 15, 7]
        assert lag(first) == {STREAM_ID: 0, 7: 0}
        add(writer, range(30, 41))
        writer.gap(stream_id=STREAM_ID, epoch=1, first_seq=41, count=2, reason="overrun")
        add(writer, range(5), epoch=2)
        finish(load_stream(spark, root), "tensorpool", target, checkpoint)
    copy = recording.open(target)
    found = [(frame.epoch, frame.seq) for frame in copy.frames(STREAM_ID)]
    assert found == [(1, seq) for seq in range(41)] + [(2, seq) for seq in range(5)]
    assert all(np.array_equal(frame.verify().array, tensor(frame.seq)) for frame in copy.frames(STREAM_ID))
    assert len(copy.frames(7)) == 7
    # Without new frames nothing is written.
    finish(load_stream(spark, root), "tensorpool", target, checkpoint)
    assert len(recording.open(target).frames(STREAM_ID)) == 46
    gaps = load(spark, root, includeGaps="true", payload="none").where("gap_count is not null").collect()
    assert [(row["seq"], row["gap_count"], row["gap_reason"]) for row in gaps] == [(41, 2, "overrun")]


def test_batch_is_recorded_completely_or_not_at_all(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    write(root, range(20))
    target = tmp_path / "written"
    halves = tensors.map(
        load(spark, root),
        lambda array: ((array // 2).tobytes(), "uint16", list(array.shape)),
        "payload binary, dtype string, shape array<int>",
    )
    halves.repartition(2).write.format("tensorpool").mode("append").save(str(target))
    for frame in recording.open(target).frames(STREAM_ID):
        assert np.array_equal(frame.array, tensor(frame.seq) // 2)
    assert recording.verify(target).rows == 20
    with pytest.raises(PySparkException, match="recorded already"):
        halves.limit(3).write.format("tensorpool").mode("append").save(str(target))
    assert recording.verify(target).rows == 20
    assert list((target / "_sinks").iterdir()) == []


def test_damage_fails_a_query_or_becomes_a_gap(spark: SparkSession, root: Path) -> None:
    write(root, range(30))
    path = sorted(root.glob("stream=*/epoch=*/*.arrows"))[1]
    content = bytearray(path.read_bytes())
    content[-40] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(PySparkException, match=path.name):
        load(spark, root, payload="inline").agg(F.sum(F.length("payload"))).collect()
    rows = load(spark, root, payload="inline", failOnDataLoss="false", includeGaps="true")
    assert rows.where("gap_count is null").count() == 29
    assert [row["gap_reason"] for row in rows.where("gap_count is not null").collect()] == ["corrupt"]


def test_frames_with_padded_rows_are_read_by_spark(
    spark: SparkSession,
    root: Path,
    aeron_dir: Path,
    shm_base: Path,
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    """Recorded from a producer that wrote lines with padding, as a frame grabber does."""
    images = [tensor(seq, (3, 10)) for seq in range(6)]
    with tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=shm_base) as context:
        producer = context.producer(free_stream_id, nslots=8, pools=["4KiB"])
        with tp.record(root, streams=[free_stream_id], context=context, frames=len(images)) as recorder:
            wait_until(lambda: recorder.mapped().get(free_stream_id) is not None)
            for image in images:
                with producer.claim(image.shape, image.dtype, strides=(64, 2)) as slot:
                    # The padding holds what was there before.
                    np.lib.stride_tricks.as_strided(slot.array, (2, 32), (64, 2))[:] = 0xAAAA
                    slot.array[:] = image
            wait_until(lambda: recorder.is_finished)
    frames = load(spark, root)
    rows = sorted(frames.collect(), key=lambda row: row["seq"])
    assert [tensors.to_numpy(row).tolist() for row in rows] == [image.tolist() for image in images]
    totals = {seq: int(image.sum()) for seq, image in enumerate(images)}
    single = tensors.map(frames, lambda array: int(array.sum()), "total bigint")
    stacked = tensors.map(frames, lambda array: array.sum(axis=(1, 2)).tolist(), "total bigint", batch=4)
    for result in (single, stacked):
        assert {row["seq"]: row["total"] for row in result.collect()} == totals


def test_rows_are_inserted_into_a_table_of_a_catalog(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    write(root, range(5))
    target = tmp_path / "target"
    write(target, range(3), stream_id=STREAM_ID + 1)
    spark.sql(f"CREATE TABLE source_frames USING tensorpool LOCATION '{root}'")
    spark.sql(f"CREATE TABLE target_frames USING tensorpool LOCATION '{target}'")
    try:
        # Without a path Spark passes only the columns of the query, and these know the table that is read.
        with pytest.raises(PySparkException, match=r"INSERT INTO name WITH \(path = 'DIR'\)"):
            spark.sql("INSERT INTO target_frames SELECT * FROM source_frames")
        spark.sql(f"INSERT INTO target_frames WITH (path = '{target}') SELECT * FROM source_frames")
        assert spark.table("target_frames").count() == 8
        assert spark.table("source_frames").count() == 5
    finally:
        spark.sql("DROP TABLE source_frames")
        spark.sql("DROP TABLE target_frames")
    with recording.open(target) as opened:
        frames = opened.frames(STREAM_ID)
        assert all((frame.verify().array == tensor(seq)).all() for seq, frame in enumerate(frames))
