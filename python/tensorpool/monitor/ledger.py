"""One line of the ledger: what became of the frames of a stream on one path.

Joins what producers, consumers, recorders and bridges tell. Pure.

Published = delivered + dropped by reason. Everybody's account is of one moment, but not of the same one.
Sequences join them: what lies between a reader's last and the producer's is on its way, whenever told.

A ledger that somebody else keeps by the way: a supervisor, the metrics, `tensorpool top`. Pure.

The ledger of what runs around a context: ears, a book, and the wait until the figures fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from .listener import SystemMonitor
from .reports import (
    BridgeStatus,
    ConsumerQos,
    ConsumerStatus,
    ProducerQos,
    ProducerStatus,
    RecorderLedger,
    RecorderStatus,
)
from .services import read_mapping, read_recorded
from .snapshot import LedgerView, MappingView, MismatchView, RecordedView
from .streams import ModelLimits


class Verdict(StrEnum):
    """How a row stands."""

    EXACT = "exact"
    """Every frame is accounted for."""
    WAITING = "waiting"
    """Some are on their way: published, and not yet taken."""
    SETTLING = "settling"
    """The figures do not fit yet. They are told at different moments, so they get a while."""
    MISMATCH = "mismatch"
    """They do not fit, and that has lasted."""
    GONE = "gone"
    """Who told has left without a last word; the last that was heard."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """`published` = `delivered` + `dropped` by reason + `waiting`."""

    stream_id: int
    path: str
    """`producer`, `consumer`, `recorder`, `bridge send`, `bridge receive`."""
    who: str
    published: int
    delivered: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    has_ended: bool = False
    problem: str = ""
    """What does not fit."""
    verdict: Verdict = Verdict.EXACT

    @property
    def unaccounted(self) -> int:
        return self.published - self.delivered - sum(self.dropped.values()) - self.waiting

    def as_json(self) -> dict[str, Any]:
        return {
            "stream_id": self.stream_id,
            "path": self.path,
            "who": self.who,
            "published": self.published,
            "delivered": self.delivered,
            "dropped": dict(sorted(self.dropped.items())),
            "waiting": self.waiting,
            "unaccounted": self.unaccounted,
            "has_ended": self.has_ended,
            "verdict": str(self.verdict),
            "problem": self.problem or None,
        }


_MOST: Final = 20_000
_ORDER: Final = {
    path: place
    for place, path in enumerate(("producer", "consumer", "recorder", "bridge send", "bridge receive"))
}
_Key = tuple[str, int, str]


@dataclass(slots=True)
class _Producer:
    told: ProducerStatus
    heard_ns: int
    epoch: int
    current_seq: int | None
    moved_ns: int


@dataclass(slots=True)
class _Consumer:
    told: ConsumerStatus
    heard_ns: int
    looked_ns: int
    """When it was last seen to look for frames."""
    is_limited: bool = False


@dataclass(slots=True)
class _Recorder:
    heard_ns: int
    is_writing: bool = True
    written: tuple[RecordedView, ...] = ()


@dataclass(slots=True)
class _Bridge:
    heard_ns: int
    mappings: tuple[MappingView, ...] = ()


class SystemLedger:
    """`observe` what ears hear; `rows` are the ledger then. For `settle_ns` figures may differ."""

    def __init__(self, *, settle_ns: int = 3_000_000_000, silent_ns: int = 5_000_000_000) -> None:
        self._settle_ns = settle_ns
        self._silent_ns = silent_ns
        self._producers: dict[tuple[int, int], _Producer] = {}
        self._newest: dict[int, tuple[int, int]] = {}
        """Whose producer's account a stream's readers are joined with."""
        self._consumers: dict[tuple[int, int], _Consumer] = {}
        self._recorders: dict[str, _Recorder] = {}
        self._bridges: dict[str, _Bridge] = {}
        self._since: dict[_Key, tuple[str, int]] = {}
        self._by_type: dict[type, Callable[[Any, int], None]] = {
            ProducerStatus: self._on_producer,
            ProducerQos: self._on_producer_report,
            ConsumerStatus: self._on_consumer,
            ConsumerQos: self._on_consumer_report,
            RecorderStatus: self._on_recorder,
            RecorderLedger: self._on_written,
            BridgeStatus: self._on_bridge,
        }

    def observe(self, event: object, now_ns: int) -> None:
        handle = self.handler(type(event))
        if handle is not None:
            handle(event, now_ns)

    def handler(self, kind: type) -> Callable[[Any, int], None] | None:
        """Who takes events of this kind: for somebody who hears thousands, and knows what they are."""
        return self._by_type.get(kind)

    def forget(self, before_ns: int) -> None:
        """Those that were last heard before that moment: for whoever keeps a book for weeks."""
        tables: tuple[dict[Any, Any], ...] = (
            self._producers,
            self._consumers,
            self._recorders,
            self._bridges,
        )
        for table in tables:
            for key in [key for key, one in table.items() if one.heard_ns < before_ns]:
                del table[key]
        self._newest = {stream: key for stream, key in self._newest.items() if key in self._producers}

    def _on_producer_report(self, report: ProducerQos, now_ns: int) -> None:
        known = self._producers.get((report.stream_id, report.producer_id))
        if known is not None and report.current_seq is not None:
            known.heard_ns = now_ns
            _reach(known, report.epoch, report.current_seq, now_ns)

    def _on_consumer_report(self, report: ConsumerQos, now_ns: int) -> None:
        reader = self._consumers.get((report.stream_id, report.consumer_id))
        if reader is not None:
            reader.is_limited = report.is_limited

    def _on_recorder(self, told: RecorderStatus, now_ns: int) -> None:
        recorder = self._recorder(told.tag, now_ns)
        recorder.is_writing = told.status.get("state") == "recording"

    def _recorder(self, tag: str, now_ns: int) -> _Recorder:
        known = self._recorders.get(tag)
        if known is None:
            known = _Recorder(now_ns)
            _put(self._recorders, tag, known)
        known.heard_ns = now_ns
        return known

    def _on_producer(self, told: ProducerStatus, now_ns: int) -> None:
        key = (told.stream_id, told.producer_id)
        known = self._producers.get(key)
        if known is None:
            known = _Producer(told, now_ns, told.epoch, None, now_ns)
            _put(self._producers, key, known)
        known.told, known.heard_ns = told, now_ns
        _reach(known, told.epoch, told.next_seq - 1 if told.next_seq else None, now_ns)
        newest = self._producers.get(self._newest.get(told.stream_id, key))
        if newest is None or told.epoch >= newest.epoch:
            _put(self._newest, told.stream_id, key)

    def _on_consumer(self, told: ConsumerStatus, now_ns: int) -> None:
        key = (told.stream_id, told.consumer_id)
        known = self._consumers.get(key)
        if known is None:
            _put(self._consumers, key, _Consumer(told, now_ns, now_ns))
            return
        if told.looks != known.told.looks:
            known.looked_ns = now_ns
        known.told, known.heard_ns = told, now_ns

    def _on_written(self, told: RecorderLedger, now_ns: int) -> None:
        try:
            written = tuple(read_recorded(one) for one in told.rows)
        except (ValueError, KeyError, TypeError):
            return
        self._recorder(told.tag, now_ns).written = written

    def _on_bridge(self, told: BridgeStatus, now_ns: int) -> None:
        try:
            mappings = tuple(read_mapping(one, {}, now_ns) for one in told.mappings)
        except (ValueError, KeyError, TypeError):
            return
        _put(self._bridges, told.tag, _Bridge(now_ns, mappings))

    # --- the ledger

    def rows(self, now_ns: int) -> list[LedgerRow]:
        """All paths, by stream."""
        found = [*self._of_producers(now_ns), *self._of_consumers(now_ns)]
        found += [*self._of_recorders(now_ns), *self._of_bridges(now_ns)]
        judged = [self._judge(row, now_ns) for row in found]
        keys = {_key(row) for row in found}
        self._since = {key: one for key, one in self._since.items() if key in keys}
        return sorted(judged, key=lambda row: (row.stream_id, _ORDER[row.path], row.who))

    def _judge(self, row: LedgerRow, now_ns: int) -> LedgerRow:
        problem = row.problem or (f"{row.unaccounted} frames unaccounted for" if row.unaccounted else "")
        key = _key(row)
        if not problem:
            self._since.pop(key, None)
            is_waiting = row.waiting and row.verdict is not Verdict.GONE
            return replace(row, verdict=Verdict.WAITING) if is_waiting else row
        # By what is wrong, not by how much: figures that move all the time never fit either.
        _, since_ns = self._since.setdefault(key, (problem, now_ns))
        lasting = now_ns - since_ns >= self._settle_ns
        return replace(row, problem=problem, verdict=Verdict.MISMATCH if lasting else Verdict.SETTLING)

    def _of_producers(self, now_ns: int) -> Iterator[LedgerRow]:
        for (stream_id, producer_id), one in self._producers.items():
            told = one.told
            yield LedgerRow(
                stream_id,
                "producer",
                str(producer_id),
                published=told.committed,
                delivered=told.published,
                dropped=told.unpublished,
                waiting=told.deferred,
                has_ended=told.is_final,
                verdict=self._presence(told.is_final, one.heard_ns, now_ns),
            )

    def _of_consumers(self, now_ns: int) -> Iterator[LedgerRow]:
        for (stream_id, consumer_id), one in self._consumers.items():
            told = one.told
            verdict = self._presence(told.is_final, one.heard_ns, now_ns)
            is_here = verdict is not Verdict.GONE and not told.is_final
            on_its_way = self._on_its_way(stream_id, told.epoch, told.last_seq) if is_here else 0
            if not self._may_be_compared(stream_id, one.heard_ns, now_ns):
                on_its_way = max(on_its_way, 0)
            dropped, waiting, problem = dict(told.dropped), max(on_its_way, 0), ""
            if on_its_way < 0:
                problem = f"{-on_its_way} frames more than its producer has published"
            elif waiting and self._is_quiet(stream_id, one.looked_ns, now_ns):
                reason = "rate_limited" if one.is_limited else self._unpublished(stream_id, waiting)
                if reason:
                    dropped[reason] = dropped.get(reason, 0) + waiting
                    waiting = 0
                else:
                    problem = f"{waiting} frames were published last, and it has looked and seen none of them"
            yield LedgerRow(
                stream_id,
                "consumer",
                str(consumer_id),
                published=told.span + max(on_its_way, 0),
                delivered=told.received,
                dropped=dropped,
                waiting=waiting,
                has_ended=told.is_final,
                problem=problem,
                verdict=verdict,
            )

    def _of_recorders(self, now_ns: int) -> Iterator[LedgerRow]:
        for tag, one in self._recorders.items():
            verdict = self._presence(False, one.heard_ns, now_ns)
            for stream_id in sorted({row.stream_id for row in one.written}):
                written = [row for row in one.written if row.stream_id == stream_id]
                last = max(written, key=lambda row: row.epoch)
                is_here = verdict is not Verdict.GONE and one.is_writing
                on_its_way = self._on_its_way(stream_id, last.epoch, last.last_seq) if is_here else 0
                if not self._may_be_compared(stream_id, one.heard_ns, now_ns):
                    on_its_way = max(on_its_way, 0)
                waiting, problem = max(on_its_way, 0), ""
                dropped: dict[str, int] = {}
                for row in written:
                    for reason, count in row.gaps.items():
                        dropped[reason] = dropped.get(reason, 0) + count
                if on_its_way < 0:
                    problem = f"{-on_its_way} frames more than its producer has published"
                elif waiting and self._is_quiet(stream_id, one.heard_ns, now_ns):
                    if reason := self._unpublished(stream_id, waiting):
                        dropped[reason] = dropped.get(reason, 0) + waiting
                        waiting = 0
                    else:
                        problem = f"{waiting} frames were published last, and are not recorded"
                yield LedgerRow(
                    stream_id,
                    "recorder",
                    tag,
                    published=sum(row.span for row in written) + max(on_its_way, 0),
                    delivered=sum(row.rows for row in written),
                    dropped=dropped,
                    waiting=waiting,
                    problem=problem,
                    verdict=verdict,
                )

    def _of_bridges(self, now_ns: int) -> Iterator[LedgerRow]:
        for tag, one in self._bridges.items():
            verdict = self._presence(False, one.heard_ns, now_ns)
            for mapping in one.mappings:
                if mapping.published is None:
                    continue
                yield _bridge_row(tag, mapping, verdict)

    # --- joining

    def _presence(self, is_final: bool, heard_ns: int, now_ns: int) -> Verdict:
        is_silent = not is_final and now_ns - heard_ns > self._silent_ns
        return Verdict.GONE if is_silent else Verdict.EXACT

    def _producer_of(self, stream_id: int) -> _Producer | None:
        key = self._newest.get(stream_id)
        return None if key is None else self._producers.get(key)

    def _on_its_way(self, stream_id: int, epoch: int | None, last_seq: int | None) -> int:
        """Sequences between a reader's last one and the producer's."""
        producer = self._producer_of(stream_id)
        if producer is None or producer.current_seq is None or last_seq is None or epoch != producer.epoch:
            return 0
        return producer.current_seq - last_seq

    def _may_be_compared(self, stream_id: int, heard_ns: int, now_ns: int) -> bool:
        """Whether the producer's word is the later one, or nothing moves: a reader that spoke last may have
        more than the producer had when it spoke."""
        producer = self._producer_of(stream_id)
        if producer is None or producer.told.is_final:
            return True
        if producer.heard_ns - heard_ns > self._settle_ns // 30:
            return True
        speaks = now_ns - producer.heard_ns <= 2 * self._settle_ns // 3
        return speaks and now_ns - producer.moved_ns >= self._settle_ns

    def _is_quiet(self, stream_id: int, looked_ns: int, now_ns: int) -> bool:
        """Whether nothing new came for a while, and the reader has looked since."""
        producer = self._producer_of(stream_id)
        if producer is None:
            return False
        return looked_ns - producer.moved_ns > self._settle_ns // 3 and now_ns >= looked_ns

    def _unpublished(self, stream_id: int, count: int) -> str:
        """The producer kept that many to itself, so nobody could hear of them."""
        producer = self._producer_of(stream_id)
        has_some = producer is not None and sum(producer.told.unpublished.values()) >= count
        return "unpublished" if has_some else ""


def _reach(one: _Producer, epoch: int, seq: int | None, now_ns: int) -> None:
    if epoch < one.epoch or (epoch == one.epoch and (seq is None or seq == one.current_seq)):
        return
    if epoch == one.epoch and one.current_seq is not None and seq is not None and seq < one.current_seq:
        return
    one.epoch, one.current_seq, one.moved_ns = epoch, seq, now_ns


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
            # Heard of in the middle: what came before is known to nobody here.
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


def _put(table: dict[Any, Any], key: Any, value: Any) -> None:
    if key not in table and len(table) >= _MOST:
        del table[next(iter(table))]
    table[key] = value


_LOOK_PERIODS: Final = 5
"""A whole ledger may be thousands of rows."""
_FORGET_PERIODS: Final = 300
_MOST_SHOWN: Final = 64


class LedgerMonitor:
    """Give it to a picture: its snapshots then say whether every frame is accounted for."""

    def __init__(self, bounds: ModelLimits) -> None:
        self._period_ns = bounds.report_period_ns
        self.book = SystemLedger(settle_ns=3 * self._period_ns, silent_ns=5 * self._period_ns)
        self._latest = LedgerView()
        self._next_look_ns = 0

    def handler(self, kind: type) -> Callable[[Any, int], None] | None:
        return self.book.handler(kind)

    def look(self, now_ns: int) -> LedgerView:
        """As it was found within the last periods."""
        if now_ns < self._next_look_ns:
            return self._latest
        self.book.forget(now_ns - _FORGET_PERIODS * self._period_ns)
        rows = self.book.rows(now_ns)
        found = Counter(str(row.verdict) for row in rows)
        # What does not fit is looked at closely: only what lasts is a mismatch, not what comes twice.
        is_close = found[Verdict.SETTLING] or found[Verdict.MISMATCH]
        self._next_look_ns = now_ns + (1 if is_close else _LOOK_PERIODS) * self._period_ns
        wrong = [row for row in rows if row.verdict is Verdict.MISMATCH][:_MOST_SHOWN]
        self._latest = LedgerView(
            {str(one): found[one] for one in Verdict},
            tuple(MismatchView(row.stream_id, row.path, row.who, row.problem) for row in wrong),
        )
        return self._latest


_OPEN: Final = frozenset({Verdict.SETTLING, Verdict.WAITING})


class LiveLedger:
    """Listens to everybody who tells. Poll it, or `settle` and read the `rows`."""

    def __init__(self, context: Context, *, clock: Clock = SYSTEM_CLOCK) -> None:
        period_ns = context.connection.report_period_ns
        self._clock = clock
        self._period_s = period_ns / 1e9
        self._settle_s = 3 * self._period_s
        self.book = SystemLedger(settle_ns=3 * period_ns, silent_ns=5 * period_ns)
        self.watcher = SystemMonitor(context, observers=(self.book,), clock=clock)

    def poll(self) -> int:
        return self.watcher.poll()

    def rows(self) -> list[LedgerRow]:
        return self.book.rows(self._clock.monotonic_ns())

    def listen(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        return self.watcher.watch(seconds, until)

    def settle(self, timeout: float) -> list[LedgerRow]:
        """Hears everybody at least twice, then waits until all is exact, or was wrong for long enough."""
        self.listen(min(2.5 * self._period_s, timeout))
        self.listen(max(timeout - 2.5 * self._period_s, 0), until=self._is_settled)
        return self.rows()

    def _is_settled(self) -> bool:
        return not any(row.verdict in _OPEN for row in self.rows())

    def close(self) -> None:
        self.watcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
