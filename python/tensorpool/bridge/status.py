"""The reply of `service:bridge` to `status()`: a row for each mapping, in JSON types.

64-bit numbers are text, because many JSON readers would round them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

from ..runtime.counters import CounterSnapshot
from .state import Phase


class DropsByEnd(TypedDict):
    """Dropped frames by the part that dropped them."""

    sender: int
    network: int
    receiver: int


class JoinedLedgerReply(TypedDict):
    """A `JoinedLedger` in JSON."""

    published: int
    delivered: int
    dropped: DropsByEnd
    exact: bool
    whole: bool


class SenderRow(TypedDict):
    """A mapping at its sender."""

    direction: Literal["send"]
    source_stream_id: int
    dest_stream_id: int | None
    payload: str
    fallback_uri: str | None
    connected: bool
    chunk_bytes: int | None
    epoch: str | None
    published: int
    sent: int
    chunks: int
    bytes: int
    dropped: dict[str, int]


class ReceiverRow(TypedDict):
    """A mapping at its receiver."""

    direction: Literal["receive"]
    source_stream_id: int
    dest_stream_id: int | None
    payload: str
    fallback_uri: str | None
    connected: bool
    source_epoch: str | None
    epoch: str | None
    destination: Phase
    fault: str
    delivered: int
    bytes: int
    chunks: int
    dropped: dict[str, int]
    incomplete: dict[str, int]
    chunks_ignored: dict[str, int]
    refused: dict[str, int]
    progress_sent: int
    ledger: JoinedLedgerReply | None


MappingRow: TypeAlias = SenderRow | ReceiverRow


class MediaDriverReply(TypedDict):
    """The media driver for UDP: a `NetworkStatus` in JSON."""

    connected: bool
    connections: int
    dir: str | None
    pid: int | None
    last_error: str | None


class BridgeStatus(TypedDict):
    """The reply to `status()`. `total` is the number of mappings, of which a reply has some."""

    instance: str
    pid: int
    total: int
    key_ids: list[str]
    media_driver: MediaDriverReply
    dest_stream_id_range: str | None
    dest_stream_ids: list[int]
    mappings: list[MappingRow]
    counters: CounterSnapshot
