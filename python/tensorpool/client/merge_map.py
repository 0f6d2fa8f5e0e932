"""Merge maps (schema 903): announced by the owner of an output stream, and joins by an announced map.

The announcer runs on a thread of its own, one for a context. A join by an announced map reads the messages on
the thread of its caller, between two results.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol, TypeAlias

from .. import _native, sbe
from ..errors import CodecError, ConfigError, JoinRejected, ReceiveTimeout
from ..sbe import (
    ClockDomain,
    SequenceMergeMapAnnounce,
    SequenceMergeMapRequest,
    SequenceRule,
    SequenceRuleType,
    TimestampMergeMapAnnounce,
    TimestampMergeMapRequest,
    TimestampRule,
    TimestampRuleType,
    TimestampSource,
)
from ..transport import Connection
from ..units import MAX_STREAM_ID
from .consumer import Consumer
from .join import (
    MAX_INPUTS,
    InputRule,
    Join,
    JoinInputLedger,
    JoinLedger,
    JoinOptions,
    JoinResults,
    JoinRules,
    plan_join,
)

Announce: TypeAlias = SequenceMergeMapAnnounce | TimestampMergeMapAnnounce

MERGE_SCHEMA_ID: Final = 903
_POLL_S: Final = 0.02
_MAX_MESSAGES: Final = 256
_CLOCKS: Final = {ClockDomain.MONOTONIC: "monotonic", ClockDomain.REALTIME_SYNCED: "realtime_synced"}


@dataclass(frozen=True, slots=True)
class MergeMap:
    """Which frames of which streams each frame of an output stream is made from.

        with ctx.join({"left": 10000, "right": 10001}, by="sequence") as pairs:
            out = ctx.producer(30000, merge_map=tp.MergeMap.from_join(pairs))

    Others follow an announced map with `ctx.join(out_stream=30000)`.
    """

    by: Literal["sequence", "time"]
    """What belongs together: frames of equal sequence, or of nearby time."""
    inputs: Mapping[int, InputRule]
    """The rule of each input, by stream id."""
    lateness_ns: int = 0
    """How much later than the others an input may arrive without being missing, in nanoseconds."""
    stale_after_ns: int | None = None
    """An input without a frame for so long may be absent; None: it blocks."""
    clock_domain: ClockDomain = ClockDomain.MONOTONIC
    """The clock of the timestamps that are compared."""

    @classmethod
    def from_streams(cls, inputs: Mapping[str, int], options: JoinOptions) -> MergeMap:
        """The map of a join of these streams (ids by name), whether or not this program runs it."""
        return cls._from_rules(plan_join(tuple(inputs), options), inputs)

    @classmethod
    def from_join(cls, join: Join) -> MergeMap:
        """The map of a running join. Raises ConfigError for one that has none, as by="latest"."""
        return cls._from_rules(
            join.rules, {name: consumer.stream_id for name, consumer in join.inputs.items()}
        )

    @classmethod
    def _from_rules(cls, rules: JoinRules, stream_ids: Mapping[str, int]) -> MergeMap:
        if rules.by == "latest":
            raise ConfigError('merge_map: a join by="latest" has none; use by="sequence" or by="time"')
        inputs = {stream_ids[rule.name]: rule for rule in rules.inputs}
        if len(inputs) < len(rules.inputs):
            raise ConfigError("merge_map: two inputs are the same stream; a map has one rule for each")
        return cls(rules.by, inputs, rules.lateness_ns, rules.stale_after_ns)

    def announce(self, out_stream_id: int, epoch: int) -> Announce:
        """The message that announces the map for an output stream and its epoch."""
        if self.by == "sequence":
            return SequenceMergeMapAnnounce(
                out_stream_id=out_stream_id,
                epoch=epoch,
                stale_timeout_ns=self.stale_after_ns,
                rules=tuple(_sequence_rule(stream_id, rule) for stream_id, rule in self.inputs.items()),
            )
        return TimestampMergeMapAnnounce(
            out_stream_id=out_stream_id,
            epoch=epoch,
            stale_timeout_ns=self.stale_after_ns,
            clock_domain=self.clock_domain,
            lateness_ns=self.lateness_ns,
            rules=tuple(_time_rule(stream_id, rule) for stream_id, rule in self.inputs.items()),
        )

    @classmethod
    def from_announce(cls, message: Announce) -> MergeMap:
        """The map of an announce. Raises JoinRejected for one with invalid rules."""
        inputs: dict[int, InputRule] = {}
        for rule in message.rules:
            if rule.input_stream_id in inputs:
                raise _invalid(message, f"two rules for stream {rule.input_stream_id}")
            inputs[rule.input_stream_id] = _input_rule(message, rule)
        if not inputs:
            raise _invalid(message, "no rules")
        if len(inputs) > MAX_INPUTS:
            raise _invalid(message, f"{len(inputs)} rules; a join has at most {MAX_INPUTS} inputs")
        if isinstance(message, SequenceMergeMapAnnounce):
            return cls("sequence", inputs, 0, message.stale_timeout_ns)
        return cls("time", inputs, message.lateness_ns or 0, message.stale_timeout_ns, message.clock_domain)

    def join_rules(self, names: Mapping[int, str], options: JoinOptions) -> JoinRules:
        """The rules of a join by this map, with the local options: tolerance, drive, depth and idle."""
        ordered = tuple(names[stream_id] for stream_id in self.inputs)
        local = plan_join(
            ordered,
            JoinOptions(
                by=self.by,
                tolerance=options.tolerance,
                drive=options.drive,
                depth=options.depth,
                idle=options.idle,
            ),
        )
        return replace(
            local,
            inputs=tuple(replace(rule, name=names[stream_id]) for stream_id, rule in self.inputs.items()),
            lateness_ns=self.lateness_ns,
            stale_after_ns=self.stale_after_ns,
            clock_domain=_CLOCKS[self.clock_domain] if self.by == "time" else None,
        )


def _sequence_rule(stream_id: int, rule: InputRule) -> SequenceRule:
    if rule.window is None:
        return SequenceRule(input_stream_id=stream_id, rule_type=SequenceRuleType.OFFSET, offset=rule.offset)
    return SequenceRule(input_stream_id=stream_id, rule_type=SequenceRuleType.WINDOW, window_size=rule.window)


def _time_rule(stream_id: int, rule: InputRule) -> TimestampRule:
    source = TimestampSource.FRAME_DESCRIPTOR if rule.publish_time else TimestampSource.SLOT_HEADER
    is_window = rule.window is not None
    return TimestampRule(
        input_stream_id=stream_id,
        rule_type=TimestampRuleType.WINDOW_NS if is_window else TimestampRuleType.OFFSET_NS,
        timestamp_source=source,
        offset_ns=None if is_window else rule.offset,
        window_ns=rule.window,
    )


def _input_rule(message: Announce, rule: SequenceRule | TimestampRule) -> InputRule:
    """The rule of an announce. It has exactly the parameter of its type."""
    if isinstance(rule, SequenceRule):
        offset, window = rule.offset, rule.window_size
        is_window = rule.rule_type == SequenceRuleType.WINDOW
        publish_time = False
    else:
        offset, window = rule.offset_ns, rule.window_ns
        is_window = rule.rule_type == TimestampRuleType.WINDOW_NS
        publish_time = rule.timestamp_source == TimestampSource.FRAME_DESCRIPTOR
    stream_id = rule.input_stream_id
    if not 1 <= stream_id <= MAX_STREAM_ID:
        raise _invalid(message, f"a rule for stream {stream_id}, which cannot be")
    given, other = (window, offset) if is_window else (offset, window)
    if given is None or other is not None:
        kind = "window" if is_window else "offset"
        raise _invalid(message, f"the rule of stream {stream_id} needs its {kind} and nothing else")
    if is_window and not 1 <= given < 1 << 62:
        raise _invalid(message, f"the window of stream {stream_id} is {given}")
    return InputRule(
        name=str(stream_id),
        offset=0 if is_window else given,
        window=given if is_window else None,
        publish_time=publish_time,
    )


def _invalid(message: Announce, why: str) -> JoinRejected:
    return JoinRejected(
        f"the merge map of stream {message.out_stream_id} is invalid: {why}; its owner must announce another",
        reason="merge_map",
        stream_id=message.out_stream_id,
    )


def decode_merge_message(message: bytes) -> sbe.Message | None:
    """A message of schema 903; None for any other message, and for one that is malformed."""
    try:
        if sbe.read_header(message).schema_id != MERGE_SCHEMA_ID:
            return None
        return sbe.decode(message)
    except CodecError:
        return None


class OutputStream(Protocol):
    """The producer of an output stream, as far as its merge map needs it."""

    @property
    def stream_id(self) -> int:
        """Its stream."""
        ...

    @property
    def epoch(self) -> int | None:
        """Its epoch; None while it has no memory."""
        ...


@dataclass(slots=True)
class _Announced:
    producer: weakref.ref[OutputStream]
    merge_map: MergeMap
    due_s: float = 0.0
    epoch: int | None = None


class MergeMapAnnouncer:
    """Announces the merge maps of a context's producers, again and again, and answers requests for them."""

    def __init__(self, connection: Connection) -> None:
        self._control = connection.publication(connection.stream_ids.control_address)
        self._requests = connection.subscription(connection.stream_ids.control_address)
        self._period_s = max(connection.announce_period_ns / 1e9, _POLL_S)
        self._lock = threading.Lock()
        self._announced: list[_Announced] = []
        self._stopping = threading.Event()
        connection.wait_ready(self._control, self._requests)
        self._thread = threading.Thread(target=self._run, name="tp-merge-maps", daemon=True)
        self._thread.start()

    def add(self, producer: OutputStream, merge_map: MergeMap) -> None:
        """Announces the map of `producer` from now on; another map of the same producer is replaced."""
        with self._lock:
            self._announced = [each for each in self._announced if each.producer() is not producer]
            self._announced.append(_Announced(weakref.ref(producer), merge_map))

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_S):
            requested = set()
            for message in self._requests.poll(_MAX_MESSAGES):
                request = decode_merge_message(message)
                if isinstance(request, SequenceMergeMapRequest | TimestampMergeMapRequest):
                    requested.add((request.out_stream_id, request.epoch))
            now_s = time.monotonic()
            with self._lock:
                announced = list(self._announced)
            for each in announced:
                self._announce_due(each, requested, now_s)

    def _announce_due(self, each: _Announced, requested: set[tuple[int, int]], now_s: float) -> None:
        producer = each.producer()
        if producer is None or getattr(producer, "closed", False):
            with self._lock:
                self._announced = [other for other in self._announced if other is not each]
            return
        epoch = producer.epoch
        if epoch is None:
            return
        if epoch != each.epoch:
            each.epoch, each.due_s = epoch, now_s
        if now_s >= each.due_s or (producer.stream_id, epoch) in requested:
            self._control.offer(each.merge_map.announce(producer.stream_id, epoch).encode())
            each.due_s = now_s + self._period_s

    def close(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        self._thread.join()
        self._control.close()
        self._requests.close()


@dataclass(slots=True)
class MergeMapState:
    """The map that is in force for an output stream. Pure: messages and the time in, requests out."""

    out_stream_id: int
    request_period_s: float
    epoch: int | None = None
    """The epoch of the output stream; None while it is unknown, and the barrier is shut."""
    announce: Announce | None = None
    merge_map: MergeMap | None = None
    rejected: JoinRejected | None = None
    """Why the announced map is not used, until it is raised."""
    changes: int = 0
    """How often the map in force changed."""
    _next_request_s: float = field(default=0.0, repr=False)

    def on_epoch(self, epoch: int | None) -> None:
        """The output stream has this epoch. Another one needs a map of its own."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._next_request_s = 0.0
            self._drop()

    def on_announce(self, message: Announce) -> None:
        """A map was announced. Another one of the same epoch replaces the earlier one."""
        is_ours = message.out_stream_id == self.out_stream_id and message.epoch == self.epoch
        if not is_ours or message == self.announce:
            return
        self._drop()
        self.announce = message
        try:
            self.merge_map = MergeMap.from_announce(message)
        except JoinRejected as error:
            self.rejected = error

    def _drop(self) -> None:
        self.announce = self.merge_map = self.rejected = None
        self.changes += 1

    def requests(self, now_s: float) -> list[SequenceMergeMapRequest | TimestampMergeMapRequest]:
        """The requests that are due: of both kinds, because only the owner knows which it has."""
        if self.epoch is None or self.announce is not None or now_s < self._next_request_s:
            return []
        self._next_request_s = now_s + self.request_period_s
        return [
            kind(out_stream_id=self.out_stream_id, epoch=self.epoch)
            for kind in (SequenceMergeMapRequest, TimestampMergeMapRequest)
        ]


class MergeMapJoin(JoinResults):
    """A join by the merge map that the owner of an output stream announces: `ctx.join(out_stream=…)`.

    There are no results until the map of the output stream's epoch is known. Another map, or another epoch,
    ends the earlier join: what it held back is dropped, and counted as `discarded`. Inputs are named by their
    stream ids ("10000"), or as `names` says.
    """

    def __init__(
        self,
        connection: Connection,
        out_stream: int | OutputStream,
        options: JoinOptions,
        open_consumer: Callable[[int], Consumer],
        names: Mapping[str, int],
    ) -> None:
        super().__init__(options.timeout)
        self._producer = None if isinstance(out_stream, int) else out_stream
        self.out_stream_id = out_stream if isinstance(out_stream, int) else out_stream.stream_id
        """The output stream whose map is used."""
        self._options = options
        self._open_consumer = open_consumer
        self._names = {stream_id: name for name, stream_id in names.items()}
        self._state = MergeMapState(self.out_stream_id, max(connection.announce_period_ns / 2e9, _POLL_S))
        ids = connection.stream_ids
        self._control = connection.publication(ids.control_address)
        self._messages = connection.subscription(ids.control_address)
        self._announces = connection.subscription(ids.announce)
        connection.wait_ready(self._control, self._messages, self._announces)
        self._join: Join | None = None
        self._past = JoinLedger(0, {})
        self._built = 0
        self._next_check_s = 0.0
        self._lock = threading.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the join was closed."""
        return self._closed

    @property
    def merge_map(self) -> MergeMap | None:
        """The map in force; None while there is none."""
        return self._state.merge_map

    @property
    def inputs(self) -> Mapping[str, Consumer]:
        """The consumers of the inputs, by name; none while there is no map."""
        return {} if self._join is None else self._join.inputs

    def wait_for_map(self, timeout: float = 10.0) -> bool:
        """Waits until the map of the output stream is known; False if that takes over `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self._current() is None:
            if time.monotonic() >= deadline or self.closed:
                return False
            time.sleep(_POLL_S)
        return True

    def poll(self, limit: int = 64) -> list[_native.JoinedFrames]:
        """The results that are ready, at most `limit`, without waiting; none while there is no map.

        Raises as `receive_or_none`.
        """
        join = None if self.closed else self._current()
        return [] if join is None else join.poll(limit)

    def receive_or_none(self, timeout: float | None = None) -> _native.JoinedFrames | None:
        """The next result; None if there was none within `timeout` seconds, or the join was closed.

        Raises JoinRejected for a map with invalid rules, and as the joins of `ctx.join({…})`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.closed:
            join = self._current()
            left = _POLL_S if deadline is None else max(0.0, min(_POLL_S, deadline - time.monotonic()))
            if join is None:
                time.sleep(left)
            elif (joined := join.receive_or_none(left)) is not None:
                return joined
            if deadline is not None and time.monotonic() >= deadline:
                return None
        return None

    def _wait(self, timeout: float) -> None:
        join = None if self.closed else self._current()
        if join is None:
            time.sleep(min(_POLL_S, timeout))
        else:
            join._wait(min(_POLL_S, timeout))

    def _receive_ready(self) -> _native.JoinedFrames | None:
        # Another map may be in force, and opening its consumers takes time: the thread does that.
        is_due = time.monotonic() >= self._next_check_s
        join = None if is_due else self._join
        return None if join is None else join._receive_ready()

    def _timeout_error(self, timeout: float | None) -> ReceiveTimeout:
        stream_id = self.out_stream_id
        after = "" if timeout is None else f" within {timeout} s"
        if self.closed:
            why = "the join is closed"
        elif self._state.epoch is None:
            why = f"stream {stream_id} was not announced; does its producer run on this media driver?"
        elif self._join is None:
            why = (
                f"no program announces a merge map of stream {stream_id}; its owner does that with "
                f"ctx.producer({stream_id}, merge_map=…)"
            )
        else:
            why = f"no frames belong together so far ({'; '.join(str(self.ledger()).splitlines())})"
        return ReceiveTimeout(f"no result{after}: {why}", stream_id=stream_id)

    def _current(self) -> Join | None:
        """The join by the map in force, after a look at new messages."""
        now_s = time.monotonic()
        if now_s < self._next_check_s:
            return self._join
        with self._lock:
            self._next_check_s = now_s + _POLL_S
            self._read_messages(now_s)
            if self._state.changes != self._built:
                self._end_join()
            if self._state.rejected is not None:
                error, self._state.rejected = self._state.rejected, None
                raise error
            if self._join is None and self._state.merge_map is not None and not self.closed:
                self._join = self._build(self._state.merge_map)
                self._built = self._state.changes
            return self._join

    def _read_messages(self, now_s: float) -> None:
        if self._producer is not None:
            self._state.on_epoch(self._producer.epoch)
        else:
            for message in self._announces.poll(_MAX_MESSAGES):
                with suppress(CodecError):
                    announce = sbe.ShmPoolAnnounce.decode(message)
                    is_later = self._state.epoch is None or announce.epoch >= self._state.epoch
                    if announce.stream_id == self.out_stream_id and is_later:
                        self._state.on_epoch(announce.epoch)
        for message in self._messages.poll(_MAX_MESSAGES):
            decoded = decode_merge_message(message)
            if isinstance(decoded, SequenceMergeMapAnnounce | TimestampMergeMapAnnounce):
                self._state.on_announce(decoded)
        for request in self._state.requests(now_s):
            self._control.offer(request.encode())

    def _build(self, merge_map: MergeMap) -> Join:
        names = {stream_id: self._names.get(stream_id, str(stream_id)) for stream_id in merge_map.inputs}
        rules = merge_map.join_rules(names, self._options)
        consumers: dict[str, Consumer] = {}
        try:
            for stream_id, name in names.items():
                consumers[name] = self._open_consumer(stream_id)
            return Join(consumers, rules)
        except BaseException:
            for consumer in consumers.values():
                consumer.close()
            raise

    def _end_join(self) -> None:
        join, self._join = self._join, None
        if join is not None:
            join.close()
            self._past = _added(self._past, join.ledger())
        self._built = self._state.changes

    def ledger(self) -> JoinLedger:
        """Counts of all frames that the join received, over all maps so far."""
        join = self._join
        return self._past if join is None else _added(self._past, join.ledger())

    def __repr__(self) -> str:
        state = "closed" if self.closed else "no map" if self._join is None else repr(self._join)
        return f"<MergeMapJoin out_stream={self.out_stream_id} {state}>"

    def close(self) -> None:
        """Ends iterations and closes the consumers. Results and their arrays stay readable."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._end_join()
        self._waiter.close()
        for handle in (self._control, self._messages, self._announces):
            handle.close()


def _added(one: JoinLedger, other: JoinLedger) -> JoinLedger:
    empty = JoinInputLedger(0, 0, {}, 0, 0, 0)
    names = dict.fromkeys((*one.inputs, *other.inputs))
    inputs = {name: one.inputs.get(name, empty) + other.inputs.get(name, empty) for name in names}
    return JoinLedger(one.results + other.results, inputs, one.missed_ticks + other.missed_ticks)
