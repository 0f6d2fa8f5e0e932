"""Live mode without Spark: offsets, received and missed frames, and hosts without a driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tensorpool import _native
from tensorpool.errors import MediaDriverUnavailable
from tensorpool.recording.tensors import as_array
from tensorpool.spark import live_source
from tensorpool.spark.live_sink import trace_id_of
from tensorpool.spark.live_source import LiveReader, LiveRows, receive_batches
from tensorpool.spark.options import STREAM, Options, arrow_schema, spark_schema
from tensorpool.spark.staging import IncomingFrame as Row
from tests.unit.spark.conftest import tensor


@dataclass
class Frame:
    seq: int
    epoch: int = 1
    is_valid: bool = True
    stream_id: int = 7
    timestamp_ns: int = 5
    publish_timestamp_ns: int | None = None
    meta_version: int = 0
    trace_id: int | None = None
    element_type: str = "uint16"
    nbytes: int = 64
    array: Any = field(default_factory=lambda: tensor(1))

    def valid(self) -> bool:
        return self.is_valid


def live(**given: str) -> Options:
    return Options({"mode": "live", "streams": "7", "includeGaps": "true", **given}, STREAM)


def test_live_rows_have_frames_and_gaps() -> None:
    options = live()
    schema = arrow_schema(spark_schema(options))
    rows = LiveRows(schema, options, (1, 4))
    for frame in (Frame(3), Frame(5), Frame(6, is_valid=False), Frame(9), Frame(0, epoch=2)):
        rows.add(frame)  # type: ignore[arg-type]
    found = [row for batch in rows.batches() for row in batch.to_pylist()]
    assert [(row["epoch"], row["seq"], row["gap_count"]) for row in found] == [
        (1, 5, None), (1, 9, None), (2, 0, None), (1, 6, 3),
    ]  # fmt: skip
    assert found[0]["payload"] == tensor(1).tobytes()
    assert (rows.last, rows.count) == ((2, 0), 3)
    assert list(rows.batches()) == []


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6, dtype=np.uint16).reshape(2, 3)),
        np.arange(12, dtype=np.uint16).reshape(2, 6)[:, ::2],
        np.arange(24, dtype=np.uint16).reshape(2, 3, 4).transpose(1, 0, 2),
        np.arange(6, dtype=np.uint16)[::-1],
    ],
    ids=["column order", "holes", "neither order", "backwards"],
)
def test_live_row_payload_matches_its_strides(array: npt.NDArray[Any]) -> None:
    options = live()
    rows = LiveRows(arrow_schema(spark_schema(options)), options, None)
    rows.add(Frame(1, array=array))  # type: ignore[arg-type]
    [row] = [row for batch in rows.batches() for row in batch.to_pylist()]
    assert row["payload_bytes"] == len(row["payload"]) == array.size * array.itemsize
    found = as_array(row["payload"], row["dtype"], row["shape"], row["strides"], "here")
    np.testing.assert_array_equal(found, array)
    assert row["crc32c"] == _native.crc32c(row["payload"])
    assert row["major_order"] == (
        "column" if found.flags.f_contiguous and not found.flags.c_contiguous else "row"
    )


def test_live_offsets_count_micro_batches() -> None:
    options = live()
    reader = LiveReader(options, spark_schema(options))
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)  # type: ignore[arg-type]
    assert end != start
    assert len(reader.partitions(start, end)) == 1
    once = LiveReader(options, spark_schema(options))
    once.prepareForTriggerAvailableNow()
    first = once.latestOffset(end, None)  # type: ignore[arg-type]
    assert first != end
    assert once.latestOffset(first, None) == first  # type: ignore[arg-type]


def test_live_read_without_a_driver_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MediaDriverUnavailable("no answer", aeron_dir="/nowhere")

    monkeypatch.setattr(live_source, "open_context", refuse)
    with pytest.raises(RuntimeError, match="the executor's own host"):
        list(receive_batches(7, live(), arrow_schema(spark_schema(live()))))


def test_live_consumer_is_reused_until_it_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Closable:
        closed = False

        def close(self) -> None:
            self.closed = True

    opened: list[Any] = []

    def open_(stream_id: int, aeron_dir: str | None) -> Any:
        opened.append(SimpleNamespace(context=Closable(), consumer=Closable()))
        return live_source._OpenConsumer(opened[-1].context, opened[-1].consumer)

    monkeypatch.setattr(live_source, "_open", open_)
    monkeypatch.setattr(live_source, "_closer", object())
    for _ in range(2):
        with live_source.live_consumer(7, "/somewhere") as consumer:
            live_source.close_idle(before=float("inf"))
            assert consumer is opened[0].consumer, "a consumer in use is not closed"
    assert len(opened) == 1
    live_source.close_idle(before=float("inf"))
    assert opened[0].context.closed
    assert opened[0].consumer.closed


def test_trace_id_of_a_row_is_reproducible() -> None:
    def row(**changes: Any) -> Row:
        values: dict[str, Any] = {
            "stream_id": 7, "epoch": 1, "seq": 5, "timestamp_ns": 0, "publish_timestamp_ns": None,
            "receive_time_ns": 0, "meta_version": 0, "trace_id": None, "dtype": "uint8", "shape": [1],
            "strides": [1], "major_order": "row", "data": memoryview(b"x"),
        }  # fmt: skip
        return Row(**(values | changes))

    assert trace_id_of(row(), 0) == trace_id_of(row(timestamp_ns=9), 3)
    assert trace_id_of(row(), 0) != trace_id_of(row(seq=6), 0)
    assert trace_id_of(row(trace_id=77), 0) == 77
    assert trace_id_of(row(seq=None), 1) != trace_id_of(row(seq=None), 2)
    assert 0 < trace_id_of(row(), 0) < 1 << 64
    # Rows without numbers of two batch writes have different trace ids.
    assert trace_id_of(row(seq=None), 1, "a") == trace_id_of(row(seq=None), 1, "a")
    assert trace_id_of(row(seq=None), 1, "a") != trace_id_of(row(seq=None), 1, "b")
