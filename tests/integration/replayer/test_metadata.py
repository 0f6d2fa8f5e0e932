"""Metadata of a replay: attributes, names, blobs and trace links equal the recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tensorpool as tp
from tensorpool import recording, sbe
from tensorpool.client.metadata import SourceDescription
from tests.unit.replayer.test_metadata import blob

from .conftest import START_NS, OpenCollector, until

RING: dict[str, Any] = {"nslots": 256, "wait": 60.0, "linger": 0.0}


def describe(
    writer: recording.RecordingWriter, stream_id: int, epoch: int, source: SourceDescription
) -> None:
    """Writes the metadata messages of a source into a recording, as a recorder does."""
    announce, meta = source.messages(stream_id)
    decoded = sbe.DataSourceAnnounce.decode(announce)
    decoded.epoch, decoded.producer_id = epoch, 7
    for message in (decoded.encode(), meta):
        writer.add_message("metadata", message, stream_id=stream_id, meta_version=source.version)


def test_each_frame_has_its_recorded_attributes(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_id: int
) -> None:
    source = SourceDescription(name="kamera-ö", summary="a camera", tags=["lab"], metadata={"exposure_ms": 1})
    with recording.RecordingWriter(root, background=False) as writer:
        seq = 0
        for epoch in (1, 2):
            for exposure in (1, 2, 3):
                source.change({"exposure_ms": exposure * epoch}, name=None, summary=None, now_ns=5)
                describe(writer, free_stream_id, epoch, source)
                for _ in range(4):
                    writer.append(
                        np.full(3, exposure * epoch, np.uint8), stream_id=free_stream_id, epoch=epoch,
                        seq=seq, receive_time_ns=START_NS + seq, meta_version=source.version,
                    )  # fmt: skip
                    seq += 1
            # Another producer numbers its versions from the beginning.
            source = SourceDescription(name="kamera-ö", metadata={"exposure_ms": 0})
    collector = open_collector(free_stream_id)
    with ctx.replay(root, paused=True, **RING) as replay:
        for number in range(24):
            until(replay.step)
            collector.until(number + 1)
        assert collector.consumer.source_name == "kamera-ö"
    for frame in collector.frames:
        assert frame.meta is not None, frame
        assert frame.meta["exposure_ms"] == frame.array[0]
    # Numbers are kept where possible; those of the second epoch have other contents.
    assert [frame.meta_version for frame in collector.frames[:12:4]] == [1, 2, 3]
    assert {frame.meta_version for frame in collector.frames[12:]}.isdisjoint({1, 3})


def test_element_type_from_attributes_is_kept(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_id: int
) -> None:
    values = np.array([0.5, 1.5, -2.0], np.float16)
    source = SourceDescription(dtype="float16")
    source.bump(1)
    with recording.RecordingWriter(root, background=False) as writer:
        describe(writer, free_stream_id, 1, source)
        writer.append(
            values.view(np.uint16), stream_id=free_stream_id, epoch=1, seq=0, meta_version=source.version
        )
    collector = open_collector(free_stream_id)
    with ctx.replay(root, **RING):
        (frame,) = collector.until(1)
    assert frame.array.dtype == np.float16
    assert np.array_equal(frame.array, values)


def test_blobs_and_trace_links_are_published(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_id: int
) -> None:
    content = bytes(range(200))
    source = SourceDescription(name="camera", metadata={"a": 1})
    source.change_blob(7, True, 1)
    parents = (sbe.TraceParent(trace_id=11), sbe.TraceParent(trace_id=12))
    links = sbe.TraceLinkSet(stream_id=free_stream_id, epoch=1, seq=1, trace_id=77, parents=parents)
    with recording.RecordingWriter(root, background=False) as writer:
        describe(writer, free_stream_id, 1, source)
        for row in blob(source.version, 7, content):
            message = sbe.decode(row["message"])
            message.stream_id = free_stream_id  # type: ignore[attr-defined]
            writer.add_message("metadata", message.encode(), stream_id=free_stream_id)
        writer.add_message("metadata", links.encode(), stream_id=free_stream_id, epoch=1)
        for seq in range(3):
            writer.append(
                [seq], stream_id=free_stream_id, epoch=1, seq=seq, meta_version=source.version,
                trace_id=77 if seq == 1 else 100 + seq,
            )  # fmt: skip
    collector = open_collector(free_stream_id)
    control = tp._native.Subscription(ctx.connection.conductor, "aeron:ipc", ctx.stream_ids.control)
    try:
        until(lambda: control.is_ready)
        links_received: list[sbe.TraceLinkSet] = []

        def poll_links() -> bool:
            for message in control.poll():
                decoded = sbe.decode(message)
                if isinstance(decoded, sbe.TraceLinkSet):
                    links_received.append(decoded)
            return bool(links_received)

        with ctx.replay(root, **RING):
            until(poll_links)
            frames = collector.until(3)
            until(lambda: collector.consumer.blob(7) == content)
    finally:
        control.close()
    (received_links,) = links_received
    assert (received_links.trace_id, [parent.trace_id for parent in received_links.parents]) == (77, [11, 12])
    assert (received_links.stream_id, received_links.epoch, received_links.seq) == (
        free_stream_id, frames[1].epoch, frames[1].seq
    )  # fmt: skip


def test_metadata_false_publishes_no_metadata(
    ctx: tp.Context, root: Path, open_collector: OpenCollector, free_stream_id: int
) -> None:
    source = SourceDescription(name="camera", metadata={"a": 1})
    source.bump(1)
    with recording.RecordingWriter(root, background=False) as writer:
        describe(writer, free_stream_id, 1, source)
        writer.append([1], stream_id=free_stream_id, epoch=1, seq=0, meta_version=source.version)
    collector = open_collector(free_stream_id)
    with ctx.replay(root, metadata=False, **RING):
        (frame,) = collector.until(1)
    assert frame.meta is None
    assert collector.consumer.source_name is None
