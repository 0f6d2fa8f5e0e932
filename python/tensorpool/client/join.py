"""Joins: frames of several streams that belong together, as one result.

The matching is native and runs on the thread of the caller, without the GIL (`crates/core/src/join`).
`async for` waits on a thread that the join owns.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias, TypedDict, get_args

from .. import _native
from ..errors import ClosedError, ConfigError, ForkedError, ReceiveTimeout
from ..text import html_table
from ..units import parse_duration
from .consumer import ASYNC_WAIT_S, AsyncWaiter, Consumer
from .options import Idle

By: TypeAlias = Literal["sequence", "time", "latest"]
Timestamp: TypeAlias = Literal["capture", "publish"]
Duration: TypeAlias = float | str
"""Seconds, or text with a unit, as in "5ms"."""

MAX_INPUTS: Final = 64
_DEPTH: Final = 1024
_BATCH: Final = 1024
_NS: Final = 1_000_000_000
_MAX_NS: Final = 1 << 62
_MAX_SEQUENCES: Final = 1 << 31


class JoinKeywords(TypedDict, total=False):
    """Keywords of `ctx.join()` that do not choose the streams; `ctx.join()` explains them."""

    by: By
    tolerance: Duration
    lateness: Duration
    offset: Mapping[str, float | str]
    window: Mapping[str, float | str]
    timestamp: Timestamp
    stale_after: Duration | None
    drive: str | float | None
    depth: int
    timeout: float | None
    idle: Idle


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """All options of one join, as the user gives them."""

    by: By = "sequence"
    tolerance: Duration = 0.0
    lateness: Duration = 0.0
    offset: Mapping[str, float | str] = field(default_factory=dict)
    window: Mapping[str, float | str] = field(default_factory=dict)
    timestamp: Timestamp = "capture"
    stale_after: Duration | None = None
    drive: str | float | None = None
    depth: int = _DEPTH
    timeout: float | None = None
    idle: Idle = "backoff"


@dataclass(frozen=True, slots=True)
class InputRule:
    """Which frames of an input belong to an output, in sequences or ns. The native join reads it."""

    name: str
    offset: int = 0
    window: int | None = None
    publish_time: bool = False


@dataclass(frozen=True, slots=True)
class JoinRules:
    """The rules of a join in the units of the native join, which reads them."""

    inputs: tuple[InputRule, ...]
    by: By
    drive: int | None = 0
    """The input that drives the join. None: any input, or a clock with `drive_period_ns`."""
    drive_period_ns: int | None = None
    tolerance_ns: int = 0
    lateness_ns: int = 0
    stale_after_ns: int | None = None
    depth: int = _DEPTH
    idle: Idle = "backoff"
    clock_domain: str | None = None
    """The clock that all inputs must have; None: any, but one."""


@dataclass(frozen=True, slots=True)
class JoinInput:
    """One input, as the native join reads it."""

    name: str
    consumer: Consumer
    offset: int
    window: int | None
    publish_time: bool


def plan_join(names: Sequence[str], options: JoinOptions) -> JoinRules:
    """The rules of a join of these inputs. Raises ConfigError with a valid form."""
    if options.by not in get_args(By):
        raise ConfigError(f'by {options.by!r}: use by="sequence", by="time" or by="latest"')
    if options.timestamp not in get_args(Timestamp):
        raise ConfigError(f'timestamp {options.timestamp!r}: use timestamp="capture" or timestamp="publish"')
    if not 1 <= len(names) <= MAX_INPUTS:
        raise ConfigError(
            f"{len(names)} inputs: a join has 1 to {MAX_INPUTS}, as in "
            'ctx.join({"left": "camera-1", "right": "camera-2"})'
        )
    if options.by != "time":
        for name in ("tolerance", "lateness"):
            if getattr(options, name):
                raise ConfigError(f'{name}: only with by="time"')
        if options.timestamp != "capture":
            raise ConfigError('timestamp: only with by="time"')
    for keyword, values in (("offset", options.offset), ("window", options.window)):
        for name in values:
            if name not in names:
                raise ConfigError(f"{keyword} of {name!r}: the inputs are {', '.join(names)}")
        if values and options.by == "latest":
            raise ConfigError(f'{keyword}: only with by="sequence" or by="time"')
    both = [name for name in options.offset if name in options.window]
    if both:
        raise ConfigError(f"input {both[0]!r} has an offset and a window: give one of them")
    drive, period_ns = _drive(names, options)
    rules = JoinRules(
        inputs=tuple(
            InputRule(
                name=name,
                offset=_offset(name, options),
                window=_window(name, options),
                publish_time=options.timestamp == "publish",
            )
            for name in names
        ),
        by=options.by,
        drive=drive,
        drive_period_ns=period_ns,
        tolerance_ns=_duration_ns("tolerance", options.tolerance),
        lateness_ns=_duration_ns("lateness", options.lateness),
        stale_after_ns=None
        if options.stale_after is None
        else _duration_ns("stale_after", options.stale_after),
        depth=options.depth,
        idle=options.idle,
    )
    if not 1 <= options.depth <= 1 << 20:
        raise ConfigError(f"depth {options.depth!r}: use a whole number of frames from 1 to {1 << 20}")
    return rules


def _drive(names: Sequence[str], options: JoinOptions) -> tuple[int | None, int | None]:
    """The input that drives the join, or the period of the clock that does."""
    drive = options.drive
    if drive is None:
        return 0, None
    if isinstance(drive, str):
        if drive in names:
            return list(names).index(drive), None
        if drive == "any" and options.by == "latest":
            return None, None
        also = ', or "any"' if options.by == "latest" else ""
        raise ConfigError(f"drive {drive!r}: use the name of an input ({', '.join(names)}){also}")
    if options.by == "sequence":
        raise ConfigError(
            f"drive {drive!r}: a join by sequence is driven by an input, as in drive={names[0]!r}"
        )
    if isinstance(drive, bool) or not 1e-3 <= drive <= 1e6:
        raise ConfigError(f"drive {drive!r}: use results a second from 0.001 to 1000000, as in drive=30")
    return None, round(_NS / drive)


def _offset(name: str, options: JoinOptions) -> int:
    value = options.offset.get(name, 0)
    if options.by == "sequence":
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _MAX_SEQUENCES:
            raise ConfigError(f"offset of {name!r} {value!r}: use a whole number of sequences")
        return value
    if isinstance(value, str) and value.startswith("-"):
        return -_duration_ns(f"offset of {name!r}", value[1:])
    if not isinstance(value, str) and value < 0:
        return -_duration_ns(f"offset of {name!r}", -value)
    return _duration_ns(f"offset of {name!r}", value)


def _window(name: str, options: JoinOptions) -> int | None:
    value = options.window.get(name)
    if value is None:
        return None
    if options.by == "sequence":
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _MAX_SEQUENCES:
            raise ConfigError(f"window of {name!r} {value!r}: use a whole number of frames, 1 or more")
        return value
    window_ns = _duration_ns(f"window of {name!r}", value)
    if window_ns == 0:
        raise ConfigError(f'window of {name!r} {value!r}: use more than 0, as in "10ms"')
    return window_ns


def _duration_ns(what: str, value: Duration) -> int:
    hint = 'use seconds, as in 0.005, or text with a unit, as in "5ms"'
    if isinstance(value, str):
        try:
            duration_ns = parse_duration(value)
        except ValueError as error:
            raise ConfigError(f"{what} {value!r}: {error}; {hint}") from None
    elif not isinstance(value, bool) and 0 <= value < _MAX_NS / _NS:
        duration_ns = round(value * _NS)
    else:
        raise ConfigError(f"{what} {value!r}: {hint}")
    if not 0 <= duration_ns < _MAX_NS:
        raise ConfigError(f"{what} {value!r}: {hint}")
    return duration_ns


@dataclass(frozen=True, slots=True, repr=False)
class JoinInputLedger:
    """`received` = `joined` + `dropped` by reason + `pending`, of one input of a join."""

    received: int
    """Frames that the join received."""
    joined: int
    """Frames that are in one result or more."""
    dropped: dict[str, int]
    """Frames that are in no result, by reason."""
    pending: int
    """Frames that are held back until the other inputs have reached them."""
    lacking: int
    """Results that were dropped because this input had no frame for them."""
    absent: int
    """Results in which this input was absent."""

    @classmethod
    def from_counts(cls, counts: _native.JoinCounts) -> JoinInputLedger:
        """The ledger from the counts of a native join."""
        return cls(
            counts.received, counts.joined, dict(counts.drops), counts.pending, counts.lacking, counts.absent
        )

    @property
    def balanced(self) -> bool:
        """Whether the counts add up."""
        return self.received == self.joined + sum(self.dropped.values()) + self.pending

    def __add__(self, other: JoinInputLedger) -> JoinInputLedger:
        """The sum of two ledgers, as of two merge maps one after the other."""
        reasons = {*self.dropped, *other.dropped}
        return JoinInputLedger(
            self.received + other.received,
            self.joined + other.joined,
            {reason: self.dropped.get(reason, 0) + other.dropped.get(reason, 0) for reason in reasons},
            self.pending + other.pending,
            self.lacking + other.lacking,
            self.absent + other.absent,
        )

    def __str__(self) -> str:
        """One line, without the zeros."""
        dropped = ", ".join(f"{reason} {count}" for reason, count in self.dropped.items() if count)
        parts = [f"joined {self.joined}"]
        parts += [f"dropped ({dropped})"] if dropped else []
        parts += [f"pending {self.pending}"] if self.pending else []
        also = "".join(
            f"; {name} {count}"
            for name, count in (("lacking", self.lacking), ("absent", self.absent))
            if count
        )
        return f"received {self.received} = {' + '.join(parts)}{also}"

    def __repr__(self) -> str:
        return f"<JoinInputLedger {self}>"


@dataclass(frozen=True, slots=True, repr=False)
class JoinLedger:
    """What became of every frame that a join received, by input."""

    results: int
    """Results that the join returned."""
    inputs: dict[str, JoinInputLedger]
    """The ledger of each input, by its name."""
    missed_ticks: int = 0
    """Results of a clock for which an input had no frame."""

    @property
    def balanced(self) -> bool:
        """Whether the counts of all inputs add up."""
        return all(ledger.balanced for ledger in self.inputs.values())

    def __str__(self) -> str:
        """One line for each input."""
        lines = [f"{name}: {ledger}" for name, ledger in self.inputs.items()]
        return "\n".join([f"results {self.results}", *lines])

    def __repr__(self) -> str:
        return f"<JoinLedger {'; '.join(str(self).splitlines())}>"

    def _repr_html_(self) -> str:
        return html_table(
            {"results": self.results, **{name: str(ledger) for name, ledger in self.inputs.items()}}
        )


class JoinResults(ABC):
    """What all joins have in common: their results, one by one, with `for` or `async for`."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        """Longest wait for a result in an iteration, in seconds; None: no limit."""
        self.owner: object = None
        """The context of this join: a program that keeps only the join keeps the context open."""
        self._waiter = AsyncWaiter("tp-join")

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the join was closed."""

    @abstractmethod
    def _wait(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for a result, and leaves it: a task that is cancelled loses none."""

    @abstractmethod
    def _receive_ready(self) -> _native.JoinedFrames | None:
        """A result that is there already: called in the event loop, so it must not wait."""

    @abstractmethod
    def _timeout_error(self, timeout: float | None) -> ReceiveTimeout:
        """Why there is no result."""

    @abstractmethod
    def close(self) -> None:
        """Ends iterations and closes the consumers. Results and their arrays stay readable."""

    @abstractmethod
    def receive_or_none(self, timeout: float | None = None) -> _native.JoinedFrames | None:
        """The next result; None if there was none within `timeout` seconds, or the join was closed.

        Raises JoinRejected if timestamps that are joined by ran backwards, or are of different clocks, and
        for a merge map with invalid rules.
        """

    def receive(self, timeout: float | None = None) -> _native.JoinedFrames:
        """The next result. Raises ReceiveTimeout after `timeout` seconds without one, or when closed.

        Without a `timeout` it is that of the join; without that, too, it waits without end.
        """
        timeout = self.timeout if timeout is None else timeout
        joined = self.receive_or_none(timeout)
        if joined is None:
            raise self._timeout_error(timeout)
        return joined

    def __iter__(self) -> Iterator[_native.JoinedFrames]:
        return self

    def __next__(self) -> _native.JoinedFrames:
        joined = self.receive_or_none(self.timeout)
        if joined is None:
            raise self._end_of_iteration()
        return joined

    def _end_of_iteration(self) -> Exception:
        return StopIteration() if self.closed else self._timeout_error(self.timeout)

    def __aiter__(self) -> AsyncIterator[_native.JoinedFrames]:
        return self

    async def __anext__(self) -> _native.JoinedFrames:
        joined = await self._waiter.poll(
            self._receive_ready,
            lambda: self._wait(ASYNC_WAIT_S),
            is_closed=lambda: self.closed,
            timeout=self.timeout,
            timeout_error=lambda: self._timeout_error(self.timeout),
        )
        if joined is None:
            raise StopAsyncIteration
        return joined

    def __enter__(self) -> Self:
        if self.closed:
            raise ClosedError("this join is closed; make another one with ctx.join(...)")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In a forked child the join belongs to the parent process: there is nothing to close.
        with suppress(ForkedError):
            self.close()


class Join(JoinResults):
    """Frames of several streams that belong together. `ctx.join(...)` returns it.

        with ctx.join({"left": "camera-1", "right": "camera-2"}, by="sequence") as pairs:
            for joined in pairs:    # waits without the GIL; Ctrl-C works
                with joined:    # raises FrameOverwritten if a slot was reused meanwhile
                    work(joined["left"].array, joined["right"].array)

    It reads its streams as consumers of its own (`inputs`), never holds a producer back, and counts what it
    could not join: `ledger()` adds up. Any thread may use it; each result goes to one of them.
    """

    def __init__(
        self,
        consumers: Mapping[str, Consumer],
        rules: JoinRules,
        *,
        timeout: float | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(timeout)
        self.inputs: Mapping[str, Consumer] = dict(consumers)
        """The consumers of the inputs, by name."""
        self.rules = rules
        """The rules in the units of the native join."""
        self._on_close = on_close
        inputs = [
            JoinInput(rule.name, consumers[rule.name], rule.offset, rule.window, rule.publish_time)
            for rule in rules.inputs
        ]
        try:
            self._native = _native.Join(inputs, rules)
        except ValueError as error:
            raise ConfigError(f"this join cannot be: {error}") from None

    def wait_for_producers(self, timeout: float = 10.0) -> bool:
        """Waits until every input has a producer; False if that takes over `timeout` seconds."""
        deadline = time.monotonic() + timeout
        return all(
            consumer.wait_for_producer(max(0.0, deadline - time.monotonic()))
            for consumer in self.inputs.values()
        )

    def poll(self, limit: int = 64) -> list[_native.JoinedFrames]:
        """The results that are ready, at most `limit`, without waiting.

        Raises JoinRejected if there are none because timestamps that are joined by ran backwards, or are of
        different clocks.
        """
        return self._native.poll(limit)

    def poll_batch(self, n: int = _BATCH) -> _native.JoinedBatch | None:
        """The results that are ready, at most `n`, as one array for each input; None if there are none.

        Nothing is copied, and no object is made for each result: many small results cost little. A batch ends
        early where the frames of an input do not lie one after the other in its ring. Raises as `poll`, and
        ConfigError for a join with windows.
        """
        return self.take_or_none(n, 0.0)

    def take_or_none(self, n: int = _BATCH, timeout: float | None = None) -> _native.JoinedBatch | None:
        """As `poll_batch`, but waits up to `timeout` seconds for the first result; None: without end."""
        if n < 1:
            raise ConfigError(f"n {n}: use 1 or more results")
        if any(rule.window is not None for rule in self.rules.inputs):
            raise ConfigError("results with windows do not form batches: use poll() or receive()")
        if timeout == 0:
            return self._native.poll_batch(n)
        return self._native.take_or_none(n, timeout)

    def take(self, n: int = _BATCH, timeout: float | None = None) -> _native.JoinedBatch:
        """As `poll_batch`, but waits for the first result. Raises ReceiveTimeout after `timeout` seconds."""
        batch = self.take_or_none(n, timeout)
        if batch is None:
            raise self._timeout_error(timeout)
        return batch

    def receive_or_none(self, timeout: float | None = None) -> _native.JoinedFrames | None:
        """The next result; None if there was none within `timeout` seconds, or the join was closed.

        Raises JoinRejected if timestamps that are joined by ran backwards, or are of different clocks.
        """
        return self._native.receive_or_none(timeout)

    def __next__(self) -> _native.JoinedFrames:
        # A result costs about a microsecond: a call more would be a tenth of it.
        joined = self._native.receive_or_none(self.timeout)
        if joined is None:
            raise self._end_of_iteration()
        return joined

    def _wait(self, timeout: float) -> None:
        self._native.wait(timeout)

    def _receive_ready(self) -> _native.JoinedFrames | None:
        return self._native.receive_or_none(0.0)

    def _timeout_error(self, timeout: float | None) -> ReceiveTimeout:
        first = next(iter(self.inputs.values()))
        after = "" if timeout is None else f" within {timeout} s"
        without = [name for name, consumer in self.inputs.items() if consumer.epoch is None]
        if self.closed:
            why = "the join is closed"
        elif without:
            why = f"input {without[0]!r} has no producer yet"
        else:
            why = f"no frames belong together so far ({'; '.join(str(self.ledger()).splitlines())})"
        return ReceiveTimeout(f"no result{after}: {why}", stream_id=first.stream_id)

    def ledger(self) -> JoinLedger:
        """Counts of all frames that the join received, by input: joined, dropped and why, or pending.

        What the consumers did not receive is in the ledger of each: `join.inputs["left"].ledger()`.
        """
        counts, results, missed_ticks = self._native.counters()
        inputs = {name: JoinInputLedger.from_counts(each) for name, each in counts.items()}
        return JoinLedger(results, inputs, missed_ticks)

    @property
    def closed(self) -> bool:
        """Whether the join, or a consumer of it, was closed."""
        return self._native.closed

    def __repr__(self) -> str:
        names = ", ".join(f"{name}={consumer.stream_id}" for name, consumer in self.inputs.items())
        state = "closed" if self.closed else f"results={self.ledger().results}"
        return f"<Join by={self.rules.by} {names} {state}>"

    def close(self) -> None:
        """Ends iterations and closes the consumers. Results and their arrays stay readable."""
        with ExitStack() as stack:
            for consumer in self.inputs.values():
                stack.callback(consumer.close)
            stack.callback(self._native.close)
            if self._on_close is not None:
                stack.callback(self._on_close)
        self._waiter.close()
