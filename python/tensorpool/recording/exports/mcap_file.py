"""MCAP, for people with viewers: images as Foxglove's RawImage, other tensors in a schema of their own."""

from __future__ import annotations

import base64
import heapq
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ...durable import RETRY_HINT, write_errors
from ...errors import MissingPackage
from ..frame import RecordedFrame
from ..selection import Frames
from .alike import Progress

# Names and fields are Foxglove's, which viewers know by heart.
_TIME: Final = {
    "type": "object",
    "title": "time",
    "properties": {"sec": {"type": "integer"}, "nsec": {"type": "integer"}},
}
_BYTES: Final = {"type": "string", "contentEncoding": "base64"}
_IMAGE: Final = {
    "title": "foxglove.RawImage",
    "type": "object",
    "properties": {
        "timestamp": _TIME,
        "frame_id": {"type": "string"},
        "width": {"type": "integer"},
        "height": {"type": "integer"},
        "encoding": {"type": "string"},
        "step": {"type": "integer"},
        "data": _BYTES,
    },
}
_TENSOR: Final = {
    "title": "tensorpool.Tensor",
    "type": "object",
    "properties": {
        "timestamp": _TIME,
        "seq": {"type": "string"},
        "dtype": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "data": _BYTES,
    },
}
_ENCODINGS: Final = {
    ("uint8", 1): "mono8",
    ("uint16", 1): "mono16",
    ("float32", 1): "32FC1",
    ("uint8", 3): "rgb8",
    ("uint8", 4): "rgba8",
}


def export_mcap(streams: Sequence[Frames], path: Path, progress: Progress | None = None) -> int:
    """Every frame as a JSON message on the topic `/stream/<id>`, in the order of receipt."""
    try:
        from mcap.writer import Writer
    except ImportError:
        raise MissingPackage(
            "exporting to MCAP needs the package mcap: pip install 'aeron-tensorpool[mcap]'"
        ) from None
    total, done = sum(len(frames) for frames in streams), 0
    with write_errors(path, RETRY_HINT):
        try:
            with path.open("wb") as file:
                writer: Any = Writer(file)
                writer.start(profile="", library="tensorpool")
                channels: dict[tuple[int, str], int] = {}
                for frame in heapq.merge(*streams, key=lambda frame: frame.receive_time_ns):
                    schema, content = _content(frame.verify())
                    key = frame.stream_id, str(schema["title"])
                    if key not in channels:
                        schema_id = writer.register_schema(
                            name=key[1], encoding="jsonschema", data=json.dumps(schema).encode()
                        )
                        channels[key] = writer.register_channel(
                            topic=f"/stream/{frame.stream_id}", message_encoding="json", schema_id=schema_id
                        )
                    writer.add_message(
                        channel_id=channels[key],
                        log_time=frame.receive_time_ns,
                        publish_time=frame.receive_time_ns,
                        sequence=frame.seq & 0xFFFF_FFFF,
                        data=json.dumps(content).encode(),
                    )
                    done += 1
                    if progress is not None:
                        progress(done, total)
                writer.finish()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return done


def _content(frame: RecordedFrame) -> tuple[dict[str, Any], dict[str, Any]]:
    array = frame.array
    sec, nsec = divmod(frame.receive_time_ns, 1_000_000_000)
    stamp = {"sec": sec, "nsec": nsec}
    data = base64.b64encode(array.tobytes()).decode("ascii")
    channels = array.shape[2] if array.ndim == 3 else 1
    encoding = _ENCODINGS.get((array.dtype.name, channels)) if array.ndim in (2, 3) else None
    if encoding is not None:
        height, width = array.shape[:2]
        return _IMAGE, {
            "timestamp": stamp, "frame_id": f"stream-{frame.stream_id}", "width": width, "height": height,
            "encoding": encoding, "step": width * channels * array.itemsize, "data": data,
        }  # fmt: skip
    return _TENSOR, {
        "timestamp": stamp, "seq": str(frame.seq), "dtype": frame.element_type, "shape": list(array.shape),
        "data": data,
    }  # fmt: skip
