"""The log of the control stream, written to as by a client that is killed inside an offer."""

from __future__ import annotations

import mmap
from pathlib import Path

# Aeron's log: three terms, then the metadata: the raw tails of the terms, the number of terms so far, and the
# default header of a frame with the stream id.
_METADATA_BYTES = 4096
_TERMS = 3
_TERM_COUNT = slice(24, 28)
_STREAM_ID = slice(336, 340)
_FRAME_BYTES = 64


def claim_for_ever(aeron_dir: Path, stream_id: int) -> None:
    """Claims a frame in the shared IPC log of a stream, and never commits it."""
    for path in (aeron_dir / "publications").iterdir():
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as log:
            start = len(log) - _METADATA_BYTES
            metadata = log[start:]
            if int.from_bytes(metadata[_STREAM_ID], "little") != stream_id:
                continue
            at = start + 8 * (int.from_bytes(metadata[_TERM_COUNT], "little") % _TERMS)
            tail = int.from_bytes(log[at : at + 8], "little") + _FRAME_BYTES
            log[at : at + 8] = tail.to_bytes(8, "little")
            return
    raise AssertionError(f"no publication of stream {stream_id} in {aeron_dir}")
