"""The ledger of a running system: what became of every frame, on every path, with its reason (wire §15.4).

Pure. Published = delivered + dropped by reason. The counts of each endpoint are consistent, but endpoints
report at different moments. Sequences join the reports: frames between a reader's last sequence and the
producer's are waiting, whatever the time of the two reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypedDict, TypeVar

from .reports import (
    BridgeReport,
    ConsumerQos,
    ConsumerReport,
    ProducerQos,
    ProducerReport,
    RecorderLedgerReport,
    RecorderReport,
)
from .snapshot import LedgerView, MappingView, MismatchView, RecordedView
from .streams import ModelLimits

_MAX_ENDPOINTS: Final = 20_000
_PATHS: Final = ("producer", "consumer", "recorder", "bridge send", "bridge receive")
_PATH_ORDER: Final = {path: position for position, path in enumerate(_PATHS)}
_VIEW_PERIODS: Final = 5
"""A ledger may have thousands of rows: it is joined again only after this many periods."""
_FORGET_PERIODS: Final = 300
_MAX_MISMATCHES: Final = 64
_Key = tuple[str, int, str]
"""Path, stream and endpoint of a row."""
_K = TypeVar("_K")
_V = TypeVar("_V")


class Verdict(StrEnum):
    """The state of a row."""

    EXACT = "exact"
    """Every frame is accounted for."""
    WAITING = "waiting"
    """Some frames are published and not yet read."""
    SETTLING = "settling"
    """The counts do not add up yet. Reports are of different moments, so this may pass."""
    MISMATCH = "mismatch"
    """The counts have not added up for a while."""
    GONE = "gone"
    """The endpoint sends no more reports, and sent no final one; these are its last counts."""


class LedgerRowJson(TypedDict):
    """A ledger row as `tensorpool ledger --json` prints it."""

    stream_id: int
    name: str | None
    path: str
    who: str
    label: str | None
    published: int
    delivered: int
    dropped: dict[str, int]
    waiting: int
    unaccounted: int
    has_ended: bool
    verdict: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """The frames of one stream on one path: `published` = `delivered` + `dropped` by reason + `waiting`."""

    stream_id: int
    path: str
    """`producer`, `consumer`, `recorder`, `bridge send`, `bridge receive`."""
    who: str
    """Id of the producer or consumer, or the tag of the recorder or bridge."""
    published: int
    delivered: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    has_ended: bool = False
    problem: str = ""
    """Why the counts do not add up."""
    verdict: Verdict = Verdict.EXACT
    label: str = ""
    """What the user calls the consumer."""
    name: str = ""
    """The stream's name, where it is known."""

    @property
    def unaccounted(self) -> int:
        """Frames with an unknown outcome."""
        return self.published - self.delivered - sum(self.dropped.values()) - self.waiting

    def to_json(self) -> LedgerRowJson:
        """The row as `tensorpool ledger --json` prints it."""
        return {
            "stream_id": self.stream_id,
            "name": self.name or None,
            "path": self.path,
            "who": self.who,
            "label": self.label or None,
            "published": self.published,
            "delivered": self.delivered,
            "dropped": dict(sorted(self.dropped.items())),
            "waiting": self.waiting,
            "unaccounted": self.unaccounted,
            "has_ended": self.has_ended,
            "verdict": str(self.verdict),
            "problem": self.problem or None,
        }


@dataclass(slots=True)
class _Producer:
    status: ProducerReport
    received_ns: int
    epoch: int
    current_seq: int | None
    moved_ns: int


@dataclass(slots=True)
class _Consumer:
    status: ConsumerReport
    received_ns: int
    polled_ns: int
    """When its count of polls last changed."""
    is_limited: bool = False


@dataclass(slots=True)
class _Recorder:
    received_ns: int
    is_writing: bool = True
    written: tuple[RecordedView, ...] = ()


@dataclass(slots=True)
class _Bridge:
    received_ns: int
    mappings: tuple[MappingView, ...] = ()


class SystemLedger:
    """`observe` takes reports, `rows` joins them. For `settle_ns` counts may differ without a mismatch."""

    def __init__(self, *, settle_ns: int = 3_000_000_000, silent_ns: int = 5_000_000_000) -> None:
        self._settle_ns = settle_ns
        self._silent_ns = silent_ns
        self._producers: dict[tuple[int, int], _Producer] = {}
        self._newest: dict[int, tuple[int, int]] = {}
        """The producer that a stream's readers are compared with."""
        self._consumers: dict[tuple[int, int], _Consumer] = {}
        self._recorders: dict[str, _Recorder] = {}
        self._bridges: dict[str, _Bridge] = {}
        self._problem_since_ns: dict[_Key, int] = {}
        self._by_type: dict[type, Callable[[Any, int], None]] = {
            ProducerReport: self._on_producer_status,
            ProducerQos: self._on_producer_qos,
            ConsumerReport: self._on_consumer_status,
            ConsumerQos: self._on_consumer_qos,
            RecorderReport: self._on_recorder_status,
            RecorderLedgerReport: self._on_recorder_ledger,
            BridgeReport: self._on_bridge_status,
        }

    def observe(self, event: object, now_ns: int) -> None:
        """Takes an event of any type; events that are not for the ledger are ignored."""
        handle = self.handler(type(event))
        if handle is not None:
            handle(event, now_ns)

    def handler(self, event_type: type) -> Callable[[Any, int], None] | None:
        """The method for events of this type, for a caller that dispatches thousands of them by type."""
        return self._by_type.get(event_type)

    def __len__(self) -> int:
        """The number of producers, consumers, recorders and bridges whose reports are kept."""
        return len(self._producers) + len(self._consumers) + len(self._recorders) + len(self._bridges)

    def forget(self, before_ns: int) -> None:
        """Drops endpoints whose last report was received before that time."""
        self._producers = {
            key: producer for key, producer in self._producers.items() if producer.received_ns >= before_ns
        }
        self._consumers = {
            key: consumer for key, consumer in self._consumers.items() if consumer.received_ns >= before_ns
        }
        self._recorders = {
            tag: recorder for tag, recorder in self._recorders.items() if recorder.received_ns >= before_ns
        }
        self._bridges = {
            tag: bridge for tag, bridge in self._bridges.items() if bridge.received_ns >= before_ns
        }
        self._newest = {stream: key for stream, key in self._newest.items() if key in self._producers}

    def _on_producer_qos(self, report: ProducerQos, now_ns: int) -> None:
        producer = self._producers.get((report.stream_id, report.producer_id))
        if producer is not None and report.current_seq is not None:
            producer.received_ns = now_ns
            _advance(producer, report.epoch, report.current_seq, now_ns)

    def _on_consumer_qos(self, report: ConsumerQos, now_ns: int) -> None:
        consumer = self._consumers.get((report.stream_id, report.consumer_id))
        if consumer is not None:
            consumer.is_limited = report.is_limited

    def _on_recorder_status(self, status: RecorderReport, now_ns: int) -> None:
        recorder = self._recorder(status.recorder.tag, now_ns)
        recorder.is_writing = status.recorder.state == "recording"

    def _recorder(self, tag: str, now_ns: int) -> _Recorder:
        recorder = self._recorders.get(tag)
        if recorder is None:
            recorder = _Recorder(now_ns)
            _put(self._recorders, tag, recorder)
        recorder.received_ns = now_ns
        return recorder

    def _on_producer_status(self, status: ProducerReport, now_ns: int) -> None:
        key = (status.stream_id, status.producer_id)
        producer = self._producers.get(key)
        if producer is None:
            producer = _Producer(status, now_ns, status.epoch, None, now_ns)
            _put(self._producers, key, producer)
        producer.status, producer.received_ns = status, now_ns
        _advance(producer, status.epoch, status.next_seq - 1 if status.next_seq else None, now_ns)
        newest = self._producers.get(self._newest.get(status.stream_id, key))
        if newest is None or status.epoch >= newest.epoch:
            _put(self._newest, status.stream_id, key)

    def _on_consumer_status(self, status: ConsumerReport, now_ns: int) -> None:
        key = (status.stream_id, status.consumer_id)
        consumer = self._consumers.get(key)
        if consumer is None:
            _put(self._consumers, key, _Consumer(status, now_ns, now_ns))
            return
        if status.polls != consumer.status.polls:
            consumer.polled_ns = now_ns
        consumer.status, consumer.received_ns = status, now_ns

    def _on_recorder_ledger(self, ledger: RecorderLedgerReport, now_ns: int) -> None:
        self._recorder(ledger.tag, now_ns).written = ledger.rows

    def _on_bridge_status(self, status: BridgeReport, now_ns: int) -> None:
        _put(self._bridges, status.tag, _Bridge(now_ns, status.mappings))

    # --- rows

    def rows(self, now_ns: int) -> list[LedgerRow]:
        """All paths, by stream."""
        joined = [*self._producer_rows(now_ns), *self._consumer_rows(now_ns)]
        joined += [*self._recorder_rows(now_ns), *self._bridge_rows(now_ns)]
        rows = [self._with_verdict(row, now_ns) for row in joined]
        keys = {_key(row) for row in joined}
        self._problem_since_ns = {key: ns for key, ns in self._problem_since_ns.items() if key in keys}
        return sorted(rows, key=lambda row: (row.stream_id, _PATH_ORDER[row.path], row.who))

    def _with_verdict(self, row: LedgerRow, now_ns: int) -> LedgerRow:
        problem = row.problem or (f"{row.unaccounted} frames unaccounted for" if row.unaccounted else "")
        key = _key(row)
        if not problem:
            self._problem_since_ns.pop(key, None)
            is_waiting = row.waiting and row.verdict is not Verdict.GONE
            return replace(row, verdict=Verdict.WAITING) if is_waiting else row
        # The number of missing frames may change all the time; only the row counts.
        since_ns = self._problem_since_ns.setdefault(key, now_ns)
        has_lasted = now_ns - since_ns >= self._settle_ns
        return replace(row, problem=problem, verdict=Verdict.MISMATCH if has_lasted else Verdict.SETTLING)

    def _producer_rows(self, now_ns: int) -> Iterator[LedgerRow]:
        for (stream_id, producer_id), producer in self._producers.items():
            status = producer.status
            yield LedgerRow(
                stream_id,
                "producer",
                str(producer_id),
                published=status.committed,
                delivered=status.published,
                dropped=status.unpublished,
                waiting=status.deferred,
                has_ended=status.is_final,
                verdict=self._presence(status.is_final, producer.received_ns, now_ns),
            )

    def _consumer_rows(self, now_ns: int) -> Iterator[LedgerRow]:
        for (stream_id, consumer_id), consumer in self._consumers.items():
            status = consumer.status
            verdict = self._presence(status.is_final, consumer.received_ns, now_ns)
            is_present = verdict is not Verdict.GONE and not status.is_final
            ahead = self._frames_ahead(stream_id, status.epoch, status.last_seq) if is_present else 0
            if not self._is_comparable(stream_id, consumer.received_ns, now_ns):
                ahead = max(ahead, 0)
            dropped, waiting, problem = dict(status.dropped), max(ahead, 0), ""
            if ahead < 0:
                problem = f"{-ahead} frames more than its producer has published"
            elif waiting and self._is_quiet(stream_id, consumer.polled_ns, now_ns):
                reason = "rate_limited" if consumer.is_limited else self._unpublished(stream_id, waiting)
                if reason:
                    dropped[reason] = dropped.get(reason, 0) + waiting
                    waiting = 0
                else:
                    problem = f"it has polled and read none of the last {waiting} published frames"
            yield LedgerRow(
                stream_id,
                "consumer",
                str(consumer_id),
                published=status.span + max(ahead, 0),
                delivered=status.received,
                dropped=dropped,
                waiting=waiting,
                has_ended=status.is_final,
                problem=problem,
                verdict=verdict,
                label=status.label,
            )

    def _recorder_rows(self, now_ns: int) -> Iterator[LedgerRow]:
        for tag, recorder in self._recorders.items():
            for stream_id in sorted({row.stream_id for row in recorder.written}):
                yield self._recorder_row(tag, recorder, stream_id, now_ns)

    def _recorder_row(self, tag: str, recorder: _Recorder, stream_id: int, now_ns: int) -> LedgerRow:
        verdict = self._presence(False, recorder.received_ns, now_ns)
        written = [row for row in recorder.written if row.stream_id == stream_id]
        last = max(written, key=lambda row: row.epoch)
        is_present = verdict is not Verdict.GONE and recorder.is_writing
        ahead = self._frames_ahead(stream_id, last.epoch, last.last_seq) if is_present else 0
        if not self._is_comparable(stream_id, recorder.received_ns, now_ns):
            ahead = max(ahead, 0)
        waiting, problem = max(ahead, 0), ""
        dropped: dict[str, int] = {}
        for row in written:
            for reason, count in row.gaps.items():
                dropped[reason] = dropped.get(reason, 0) + count
        if ahead < 0:
            problem = f"{-ahead} frames more than its producer has published"
        elif waiting and self._is_quiet(stream_id, recorder.received_ns, now_ns):
            if reason := self._unpublished(stream_id, waiting):
                dropped[reason] = dropped.get(reason, 0) + waiting
                waiting = 0
            else:
                problem = f"the last {waiting} published frames are not recorded"
        return LedgerRow(
            stream_id,
            "recorder",
            tag,
            published=sum(row.span for row in written) + max(ahead, 0),
            delivered=sum(row.rows for row in written),
            dropped=dropped,
            waiting=waiting,
            problem=problem,
            verdict=verdict,
        )

    def _bridge_rows(self, now_ns: int) -> Iterator[LedgerRow]:
        for tag, bridge in self._bridges.items():
            verdict = self._presence(False, bridge.received_ns, now_ns)
            for mapping in bridge.mappings:
                if mapping.published is not None:
                    yield _bridge_row(tag, mapping, verdict)

    # --- comparison with the producer

    def _presence(self, is_final: bool, received_ns: int, now_ns: int) -> Verdict:
        is_silent = not is_final and now_ns - received_ns > self._silent_ns
        return Verdict.GONE if is_silent else Verdict.EXACT

    def _producer_of(self, stream_id: int) -> _Producer | None:
        key = self._newest.get(stream_id)
        return None if key is None else self._producers.get(key)

    def _frames_ahead(self, stream_id: int, epoch: int | None, last_seq: int | None) -> int:
        """Sequences from a reader's last one to the producer's; 0 if they cannot be compared."""
        producer = self._producer_of(stream_id)
        if producer is None or producer.current_seq is None or last_seq is None or epoch != producer.epoch:
            return 0
        return producer.current_seq - last_seq

    def _is_comparable(self, stream_id: int, received_ns: int, now_ns: int) -> bool:
        """Whether a reader may not be ahead of the producer: the producer's report is the later one, or no
        sequence moves. A reader that reported last may have read frames that the producer did not report."""
        producer = self._producer_of(stream_id)
        if producer is None or producer.status.is_final:
            return True
        if producer.received_ns - received_ns > self._settle_ns // 30:
            return True
        is_reporting = now_ns - producer.received_ns <= 2 * self._settle_ns // 3
        return is_reporting and now_ns - producer.moved_ns >= self._settle_ns

    def _is_quiet(self, stream_id: int, polled_ns: int, now_ns: int) -> bool:
        """Whether the producer published no frame for a while, and the reader has polled since."""
        producer = self._producer_of(stream_id)
        if producer is None:
            return False
        return polled_ns - producer.moved_ns > self._settle_ns // 3 and now_ns >= polled_ns

    def _unpublished(self, stream_id: int, count: int) -> str:
        """The drop reason if the producer committed that many frames without a descriptor."""
        producer = self._producer_of(stream_id)
        has_enough = producer is not None and sum(producer.status.unpublished.values()) >= count
        return "unpublished" if has_enough else ""


def _advance(producer: _Producer, epoch: int, seq: int | None, now_ns: int) -> None:
    if epoch < producer.epoch:
        return
    if epoch == producer.epoch:
        if seq is None or seq == producer.current_seq:
            return
        if producer.current_seq is not None and seq < producer.current_seq:
            return
    producer.epoch, producer.current_seq, producer.moved_ns = epoch, seq, now_ns


def _bridge_row(tag: str, mapping: MappingView, verdict: Verdict) -> LedgerRow:
    dropped: Mapping[str, int] = mapping.dropped
    problem = ""
    published = mapping.published or 0
    if mapping.direction == "receive":
        network = mapping.network or 0
        dropped = {**dropped, **({"sender": mapping.sender} if mapping.sender else {})}
        if network > 0:
            dropped = {**dropped, "network": network}
        elif network < 0:
            problem = f"{-network} frames more than were sent"
        if not mapping.exact:
            # The receiver joined an active sender: the frames before that are unknown here.
            published = mapping.frames + sum(dropped.values())
    return LedgerRow(
        mapping.source_stream_id,
        f"bridge {mapping.direction}",
        f"{tag} {mapping.source_stream_id}→{mapping.dest_stream_id}",
        published=published,
        delivered=mapping.frames,
        dropped=dropped,
        problem=problem,
        verdict=verdict,
    )


def _key(row: LedgerRow) -> _Key:
    return row.path, row.stream_id, row.who


def _put(table: dict[_K, _V], key: _K, value: _V) -> None:
    if key not in table and len(table) >= _MAX_ENDPOINTS:
        del table[next(iter(table))]
    table[key] = value


class LedgerMonitor:
    """The ledger of a system model, and a summary of it that is joined once in a few periods."""

    def __init__(self, limits: ModelLimits) -> None:
        self._period_ns = limits.report_period_ns
        self.ledger = SystemLedger(settle_ns=3 * self._period_ns, silent_ns=5 * self._period_ns)
        self._view = LedgerView()
        self._next_view_ns = 0

    def view(self, now_ns: int) -> LedgerView:
        """The summary, a few periods old at most."""
        if now_ns < self._next_view_ns:
            return self._view
        self.ledger.forget(now_ns - _FORGET_PERIODS * self._period_ns)
        rows = self.ledger.rows(now_ns)
        counts = Counter(str(row.verdict) for row in rows)
        # While counts do not add up they are joined every period: only a problem that lasts is a mismatch,
        # not one that is found twice.
        has_problem = counts[Verdict.SETTLING] or counts[Verdict.MISMATCH]
        self._next_view_ns = now_ns + (1 if has_problem else _VIEW_PERIODS) * self._period_ns
        mismatches = [row for row in rows if row.verdict is Verdict.MISMATCH][:_MAX_MISMATCHES]
        self._view = LedgerView(
            {str(verdict): counts[verdict] for verdict in Verdict},
            tuple(MismatchView(row.stream_id, row.path, row.who, row.problem) for row in mismatches),
        )
        return self._view
