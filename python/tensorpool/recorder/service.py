"""`service:recorder`: properties and commands of a recorder.

Commands run on the service's thread and use `RecorderAgent.call` to do their work in the next duty cycle.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TypedDict

from ..errors import RequestRejected
from ..recording.gaps import LedgerReply
from ..service import Event, Property, Service, command
from .state import RecorderStatsReply, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .agent import RecorderAgent

_MAX_LABEL_CHARS: Final = 10_000
_MAX_TRIGGER_S: Final = 86_400.0


class RecorderStatus(RecorderStatsReply):
    """The reply to `status()`."""

    root: str
    pid: int


class StateReply(TypedDict):
    """The reply to commands that change the state."""

    state: State


class RecorderService(Service, name="recorder"):
    """Writes streams to disk."""

    state = Property("recording", writable=False, doc="recording, armed, stopped, disk_full or closed.")
    problem = Property("", writable=False, doc="Why nothing is written; empty if nothing is wrong.")
    root = Property("", writable=False, doc="The directory of the recording.")
    rows = Property(0, writable=False, doc="Frames written since the start.")
    gaps = Property(0, writable=False, doc="Sequences missing since the start.")
    rows_per_s = Property(0.0, writable=False, doc="Frames written per second, over the last three seconds.")
    bytes_per_s = Property(
        0.0, writable=False, doc="Payload bytes written per second, over the last three seconds."
    )
    backlog = Property(0, writable=False, doc="Bytes of the buffer in use for frames that wait for the disk.")
    disk_free = Property(0, writable=False, doc="Free bytes of the disk.")

    def __init__(self, agent: RecorderAgent, *, instance: str | None = None) -> None:
        super().__init__(instance=instance)
        self._agent = agent
        self.root = str(agent.root)

    def take_events(self) -> Iterator[Event]:
        """Update the properties from the newest stats, in every duty cycle of the service."""
        stats = self._agent.stats
        self.state = stats.state
        self.problem = stats.problem or ""
        self.rows, self.gaps = stats.rows, stats.lost
        self.rows_per_s, self.bytes_per_s = round(stats.rows_per_s, 1), float(round(stats.bytes_per_s))
        self.backlog, self.disk_free = stats.backlog_bytes, stats.disk_free_bytes
        return super().take_events()

    @command(reads=True)
    def status(self) -> RecorderStatus:
        """All stats."""
        return {**self._agent.stats.to_json(), "root": str(self._agent.root), "pid": os.getpid()}

    @command
    def start(self) -> StateReply:
        """Continue after stop(); frames published in between are a gap."""
        return self._run(self._agent.start)

    @command
    def stop(self) -> StateReply:
        """Write all received frames, seal the segments and close the streams until start()."""
        return self._run(self._agent.stop)

    @command
    def rotate(self) -> StateReply:
        """Write all received frames and seal the open segments."""
        return self._run(self._agent.rotate)

    @command
    def mark(self, label: str, stream_id: int | None = None) -> StateReply:
        """Write a label with the current time, for one stream or for all."""
        _check_label(label)
        _check_stream_id(stream_id)
        return self._run(lambda: self._agent.mark(label, stream_id))

    @command
    def trigger(self, seconds: float | None = None) -> StateReply:
        """Write the pre-trigger buffer and all frames from now on, for a time or without end."""
        _check_seconds(seconds)
        for_ns = None if seconds is None else int(seconds * 1e9)
        return self._run(lambda: self._agent.trigger(for_ns))

    @command(reads=True)
    def ledger(self) -> list[LedgerReply]:
        """The ledger since the start, by stream and epoch: span = rows + gaps."""
        return [ledger.to_json() for ledger in self._agent.call(self._agent.ledgers)]

    def _run(self, function: Callable[[], None]) -> StateReply:
        self._agent.call(function)
        return {"state": self._agent.state}


def _check_label(label: object) -> None:
    if not isinstance(label, str) or not 0 < len(label) <= _MAX_LABEL_CHARS:
        raise RequestRejected(f"mark(): label must be a text of 1 to {_MAX_LABEL_CHARS} characters")


def _check_stream_id(stream_id: object) -> None:
    if stream_id is not None and not (isinstance(stream_id, int) and 0 < stream_id < 1 << 32):
        raise RequestRejected("mark(): stream_id must be a number, as in 10000")


def _check_seconds(seconds: object) -> None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and 0 < seconds <= _MAX_TRIGGER_S):  # type: ignore[operator]
        raise RequestRejected(f"trigger(): seconds must be a number up to {_MAX_TRIGGER_S:.0f}")
