"""Spark on recordings in an object store: planning, rows by reference and inline, streams, and the sink."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tensorpool import recording
from tensorpool.spark import start, tensors
from tensorpool.spark.source import TensorPoolSource
from tests.integration.storage.recordings import FRAMES, STREAM, make_array, write_recording
from tests.s3_server import S3Server


@pytest.fixture(autouse=True)
def store_environment(spark: SparkSession, s3_server: S3Server) -> Iterator[None]:
    """Passes the server's address and credentials to Spark's Python processes, as a cluster does.

    Spark's own process is older than the server: functions carry the environment, and the source is one.
    """
    environment = spark.sparkContext.environment
    before = dict(environment)
    environment.update(s3_server.environment)
    spark.dataSource.register(TensorPoolSource)
    yield
    environment.clear()
    environment.update(before)
    spark.dataSource.register(TensorPoolSource)


def read(spark: SparkSession, path: str, **options: Any) -> list[Any]:
    reader = spark.read.format("tensorpool").option("streams", str(STREAM))
    return reader.options(**options).load(path).orderBy("seq").collect()


def test_spark_reads_a_store_as_it_reads_a_disk(
    spark: SparkSession, s3_server: S3Server, tmp_path: Path
) -> None:
    root, uri = tmp_path / "recording", s3_server.uri("camera")
    write_recording(root)
    local = read(spark, str(root), payload="inline")
    recording.push(root, uri)
    assert read(spark, uri, payload="inline") == local
    assert read(spark, root.as_uri(), payload="inline") == local
    assert [row.seq for row in read(spark, uri, payload="none")] == [s for s in range(FRAMES) if s != 7]
    # Rows of both name the segment in the store, and where it is on this disk.
    here, there = read(spark, str(root)), read(spark, uri)
    assert here == there
    assert {row.segment.split("/stream=")[0] for row in there} == {uri}
    assert {row.segment.partition("#")[2] for row in there} == {str(root)}
    for secret in (s3_server.secret_key, s3_server.access_key):
        assert secret not in str(there)

    def sums() -> dict[int, int]:
        frames = spark.read.format("tensorpool").option("streams", str(STREAM)).load(uri)
        mapped = tensors.map(frames, lambda array: int(array.sum()), "total bigint")
        return {row.seq: row.total for row in mapped.collect()}

    expected = {row.seq: int(make_array(row.seq).sum(dtype=np.int64)) for row in local}
    # Without the server: this host has the files, and maps them.
    key = "camera/stream=30000"
    hidden = s3_server.file("hidden")
    s3_server.file(key).rename(hidden)
    shutil.copytree(hidden, s3_server.file(key), ignore=shutil.ignore_patterns("*.arrows"))
    assert sums() == expected
    shutil.rmtree(s3_server.file(key))
    hidden.rename(s3_server.file(key))
    # Without the files: any other host reads the store.
    shutil.rmtree(root / f"stream={STREAM}")
    assert sums() == expected
    assert np.array_equal(tensors.to_numpy(there[3]), make_array(there[3].seq))


def test_spark_stream_follows_an_archive(spark: SparkSession, s3_server: S3Server, tmp_path: Path) -> None:
    root, uri = tmp_path / "recording", s3_server.uri("camera")
    write_recording(root, count=6)
    recording.push(root, uri)
    frames = spark.readStream.format("tensorpool").option("streams", str(STREAM)).load(uri)

    def run() -> int:
        query = start(
            frames.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "table"))
            .trigger(availableNow=True)
        )
        query.awaitTermination()
        return spark.read.parquet(str(tmp_path / "table")).count()

    assert run() == 6
    write_recording(root, first=6, count=5)
    recording.push(root)
    assert run() == 11


def test_spark_sink_writes_a_file_uri_and_refuses_a_store(
    spark: SparkSession, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root, copy = tmp_path / "recording", tmp_path / "copy"
    write_recording(root, count=6)
    frames = spark.read.format("tensorpool").option("payload", "inline").load(root.as_uri())
    frames.write.format("tensorpool").mode("append").save(copy.as_uri())
    with recording.open(copy) as copied:
        assert len(copied.frames(STREAM)) == 6
    for uri in (s3_server.uri("copy"), "s3a://lake/copy"):
        with pytest.raises(PySparkException, match="tensorpool recording push"):
            frames.write.format("tensorpool").mode("append").save(uri)
    assert s3_server.objects() == []
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("s3")) == ["s3"]
