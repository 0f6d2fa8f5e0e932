"""What the sources said of themselves is said again: attributes, names, blobs, lineage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tensorpool as tp
from tensorpool import recording, sbe
from tensorpool.client.metadata import SourceDescription
from tests.unit.replayer.test_words import blob

from .conftest import START_NS, Listen, until

RING: dict[str, Any] = {"nslots": 256, "wait": 60.0, "linger": 0.0}


def describe(writer: recording.RecordingWriter, stream_id: int, epoch: int, said: SourceDescription) -> None:
    """What a recorder writes down of a source's words."""
    announce, meta = said.messages(stream_id)
    decoded = sbe.DataSourceAnnounce.decode(announce)
    decoded.epoch, decoded.producer_id = epoch, 7
    for message in (decoded.encode(), meta):
        writer.add_message("metadata", message, stream_id=stream_id, meta_version=said.version)


def test_each_frame_has_the_attributes_that_it_had(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_id: int
) -> None:
    said = SourceDescription(name="kamera-ö", summary="a camera", tags=["lab"], metadata={"exposure_ms": 1})
    with recording.RecordingWriter(root, background=False) as writer:
        seq = 0
        for epoch in (1, 2):
            for exposure in (1, 2, 3):
                said.change({"exposure_ms": exposure * epoch}, name=None, summary=None, now_ns=5)
                describe(writer, free_stream_id, epoch, said)
                for _ in range(4):
                    writer.append(
                        np.full(3, exposure * epoch, np.uint8), stream_id=free_stream_id, epoch=epoch,
                        seq=seq, receive_time_ns=START_NS + seq, meta_version=said.version,
                    )  # fmt: skip
                    seq += 1
            # Another producer counts its versions from the beginning.
            said = SourceDescription(name="kamera-ö", metadata={"exposure_ms": 0})
    listener = listen(free_stream_id)
    with ctx.replay(root, paused=True, **RING) as replay:
        for number in range(24):
            until(replay.step)
            listener.until(number + 1)
        assert listener.consumer.source_name == "kamera-ö"
    for frame in listener.frames:
        assert frame.meta is not None, frame
        assert frame.meta["exposure_ms"] == frame.array[0]
    # Numbers are kept where they can be: those of the second epoch mean something else.
    assert [frame.meta_version for frame in listener.frames[:12:4]] == [1, 2, 3]
    assert {frame.meta_version for frame in listener.frames[12:]}.isdisjoint({1, 3})


def test_element_types_that_attributes_tell_of_come_as_what_they_are(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_id: int
) -> None:
    values = np.array([0.5, 1.5, -2.0], np.float16)
    said = SourceDescription(dtype="float16")
    said.bump(1)
    with recording.RecordingWriter(root, background=False) as writer:
        describe(writer, free_stream_id, 1, said)
        writer.append(
            values.view(np.uint16), stream_id=free_stream_id, epoch=1, seq=0, meta_version=said.version
        )
    listener = listen(free_stream_id)
    with ctx.replay(root, **RING):
        (frame,) = listener.until(1)
    assert frame.array.dtype == np.float16
    assert np.array_equal(frame.array, values)


def test_blobs_and_lineage_come_along(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_id: int
) -> None:
    content = bytes(range(200))
    said = SourceDescription(name="camera", metadata={"a": 1})
    said.change_blob(7, True, 1)
    parents = (sbe.TraceParent(trace_id=11), sbe.TraceParent(trace_id=12))
    links = sbe.TraceLinkSet(stream_id=free_stream_id, epoch=1, seq=1, trace_id=77, parents=parents)
    with recording.RecordingWriter(root, background=False) as writer:
        describe(writer, free_stream_id, 1, said)
        for row in blob(said.version, 7, content):
            message = sbe.decode(row["message"])
            message.stream_id = free_stream_id  # type: ignore[attr-defined]
            writer.add_message("metadata", message.encode(), stream_id=free_stream_id)
        writer.add_message("metadata", links.encode(), stream_id=free_stream_id, epoch=1)
        for seq in range(3):
            writer.append(
                [seq], stream_id=free_stream_id, epoch=1, seq=seq, meta_version=said.version,
                trace_id=77 if seq == 1 else 100 + seq,
            )  # fmt: skip
    listener = listen(free_stream_id)
    control = tp._native.Subscription(ctx._conductor, "aeron:ipc", ctx.stream_ids.control)
    try:
        until(lambda: control.is_ready)
        heard: list[sbe.TraceLinkSet] = []

        def hears_links() -> bool:
            for message in control.poll():
                decoded = sbe.decode(message)
                if isinstance(decoded, sbe.TraceLinkSet):
                    heard.append(decoded)
            return bool(heard)

        with ctx.replay(root, **RING):
            until(hears_links)
            frames = listener.until(3)
            until(lambda: listener.consumer.blob(7) == content)
    finally:
        control.close()
    (found,) = heard
    assert (found.trace_id, [one.trace_id for one in found.parents]) == (77, [11, 12])
    assert (found.stream_id, found.epoch, found.seq) == (
        free_stream_id, frames[1].epoch, frames[1].seq
    )  # fmt: skip


def test_nothing_is_said_if_that_was_asked_for(
    ctx: tp.Context, root: Path, listen: Listen, free_stream_id: int
) -> None:
    said = SourceDescription(name="camera", metadata={"a": 1})
    said.bump(1)
    with recording.RecordingWriter(root, background=False) as writer:
        describe(writer, free_stream_id, 1, said)
        writer.append([1], stream_id=free_stream_id, epoch=1, seq=0, meta_version=said.version)
    listener = listen(free_stream_id)
    with ctx.replay(root, metadata=False, **RING):
        (frame,) = listener.until(1)
    assert frame.meta is None
    assert listener.consumer.source_name is None
