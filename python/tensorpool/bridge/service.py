"""`service:bridge`: the status of a bridge instance (service §4).

The reply to `status()` has a row for each mapping, in JSON types. 64-bit numbers are text, because many
JSON readers would round them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypedDict

from ..runtime.config import Secret
from ..runtime.counters import CounterSnapshot
from ..service import Service, command
from .destination import Phase

if TYPE_CHECKING:
    from .agent import BridgeAgent


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


_MAX_ROWS: Final = 100


class BridgeService(Service, name="bridge"):
    """The mappings of a bridge and the ledgers of their frames."""

    def __init__(
        self, agent: BridgeAgent, *, instance: str | None = None, token: Secret | None = None
    ) -> None:
        super().__init__(instance=instance, token=token)
        self._agent = agent

    @command(reads=True)
    def status(self, first: int = 0, limit: int = 100) -> BridgeStatus:
        """The instance, its counters, and its mappings from number `first` on."""
        rows, network = self._agent.rows(), self._agent.network
        return {
            "instance": self._agent.settings.instance_id,
            "pid": os.getpid(),
            "total": len(rows),
            "key_ids": self._agent.key_ids,
            "media_driver": {
                "connected": network.connected,
                "connections": network.connections,
                "dir": network.dir,
                "pid": network.pid,
                "last_error": network.last_error,
            },
            "dest_stream_id_range": self._agent.dest_stream_id_range,
            "dest_stream_ids": self._agent.dest_stream_ids,
            "mappings": rows[max(first, 0) :][: max(min(limit, _MAX_ROWS), 1)],
            "counters": self._agent.counters.snapshot(),
        }
