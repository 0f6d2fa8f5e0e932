"""`service:recorder`: a recorder as others see and steer it.

Commands run on the service's thread and have the agent do the work in its next turn.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..errors import RequestRejected
from ..recording import RecordingLedger
from ..service import Event, Property, Service, command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .agent import RecorderAgent

_LONGEST_LABEL = 10_000
_LONGEST_TRIGGER_S = 86_400.0


class RecorderService(Service, name="recorder"):
    """Records streams to disk."""

    state = Property("recording", writable=False, doc="recording, armed, stopped, disk_full or closed.")
    problem = Property("", writable=False, doc="Why nothing is written, where something is wrong.")
    root = Property("", writable=False, doc="The directory of the recording.")
    rows = Property(0, writable=False, doc="Frames written since the start.")
    gaps = Property(0, writable=False, doc="Sequences lost since the start.")
    rows_per_s = Property(0.0, writable=False, doc="Frames written a second, over the last few.")
    bytes_per_s = Property(0.0, writable=False, doc="Payload bytes written a second, over the last few.")
    backlog = Property(0, writable=False, doc="Bytes of memory in use for frames that wait for the disk.")
    disk_free = Property(0, writable=False, doc="Bytes that the disk has left.")

    def __init__(self, agent: RecorderAgent, *, instance: str | None = None) -> None:
        super().__init__(instance=instance)
        self._agent = agent
        self.root = str(agent.root)

    def take_events(self) -> Iterator[Event]:
        """Asked in every turn of the service: the figures are as new as that."""
        stats = self._agent.stats
        self.state = stats.state
        self.problem = stats.problem or ""
        self.rows, self.gaps = stats.rows, stats.lost
        self.rows_per_s, self.bytes_per_s = round(stats.rows_per_s, 1), float(round(stats.bytes_per_s))
        self.backlog, self.disk_free = stats.backlog_bytes, stats.disk_free_bytes
        return super().take_events()

    @command
    def status(self) -> dict[str, Any]:
        """Everything at once."""
        return {**self._agent.stats.as_json(), "root": str(self._agent.root), "pid": os.getpid()}

    @command
    def start(self) -> dict[str, Any]:
        """Goes on after stop(); what came meanwhile is a gap."""
        return self._done(self._agent.start)

    @command
    def stop(self) -> dict[str, Any]:
        """Writes and seals what is there, and lets go of the streams until start()."""
        return self._done(self._agent.stop)

    @command
    def rotate(self) -> dict[str, Any]:
        """Ends the open segments."""
        return self._done(self._agent.rotate)

    @command
    def mark(self, label: str, stream_id: int | None = None) -> dict[str, Any]:
        """Puts a label at this moment, for all streams or for one."""
        _check_label(label)
        _check_stream_id(stream_id)
        return self._done(lambda: self._agent.mark(label, stream_id))

    @command
    def trigger(self, seconds: float | None = None) -> dict[str, Any]:
        """Writes what is kept of the past and what comes, for a while or for good."""
        _check_seconds(seconds)
        for_ns = None if seconds is None else int(seconds * 1e9)
        return self._done(lambda: self._agent.trigger(for_ns))

    @command
    def ledger(self) -> list[dict[str, Any]]:
        """What was written since the start, by stream and epoch: span = rows + gaps."""
        return [ledger_json(one) for one in self._agent.ask(self._agent.ledgers)]

    def _done(self, what: Any) -> dict[str, Any]:
        self._agent.ask(what)
        return {"state": self._agent.state}


def _check_label(label: object) -> None:
    if not isinstance(label, str) or not 0 < len(label) <= _LONGEST_LABEL:
        raise RequestRejected(f"mark(): the label is a text of 1 to {_LONGEST_LABEL} characters")


def _check_stream_id(stream_id: object) -> None:
    if stream_id is not None and not (isinstance(stream_id, int) and 0 < stream_id < 1 << 32):
        raise RequestRejected("mark(): the stream id is a number, as in 10000")


def _check_seconds(seconds: object) -> None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and 0 < seconds <= _LONGEST_TRIGGER_S):  # type: ignore[operator]
        raise RequestRejected(f"trigger(): seconds are a number up to {_LONGEST_TRIGGER_S:.0f}")


def ledger_json(one: RecordingLedger) -> dict[str, Any]:
    """64-bit numbers are strings: many a JSON reader would round them."""
    return {
        "stream_id": one.stream_id,
        "epoch": str(one.epoch),
        "first_seq": str(one.first_seq),
        "last_seq": str(one.last_seq),
        "span": one.span,
        "rows": one.rows,
        "gaps": dict(sorted(one.gaps.items())),
        "balanced": one.balanced,
    }
