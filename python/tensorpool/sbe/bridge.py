"""Messages between bridge instances, schema 902 (bridge §5).

`BridgeFrameChunkR2` is the later revision, which deployed peers use. It adds a trace id and a checksum.
"""

from __future__ import annotations

from .message import Message, message


@message("bridge-902")
class BridgeFrameChunk(Message):
    """A chunk of a frame. Chunk 0 also has the slot header."""

    stream_id: int
    epoch: int
    seq: int
    chunk_index: int
    chunk_count: int
    chunk_offset: int
    chunk_length: int
    payload_length: int
    header_included: bool
    header_bytes: bytes = b""
    payload_bytes: bytes = b""


@message("bridge-902-r2", "BridgeFrameChunk")
class BridgeFrameChunkR2(Message):
    """A chunk of a frame. Chunk 0 also has the slot header. Later revision."""

    stream_id: int
    epoch: int
    seq: int
    trace_id: int | None = None
    chunk_index: int
    chunk_count: int
    chunk_offset: int
    chunk_length: int
    payload_length: int
    payload_crc32c: int
    header_included: bool
    header_bytes: bytes = b""
    payload_bytes: bytes = b""
