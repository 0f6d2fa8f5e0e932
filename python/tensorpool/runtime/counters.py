"""Counters: named numbers that a role keeps about itself, each with a kind, a unit and a sentence.

class RecorderCounters(CounterSet, name="recorder"):
    frames = counter("Frames written to a segment.", unit="frames", aeron=True)
    backlog = gauge("Bytes that wait for the disk.", unit="bytes")
    dropped = counters_by("reason", ["late", "no_room"], "Frames not written.", unit="frames")

counters = RecorderCounters(instance="lab")
counters.frames.add()
counters.dropped["late"].add(3)
counters.snapshot()      # {"frames": 1, "backlog": 0, "dropped": {"late": 3, "no_room": 0}}

Any thread may count, and any thread may read.

The few counters of a role that stand among the media driver's, for AeronStat and for our own tools.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NamedTuple, cast

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ForkedError

Kind = Literal["counter", "gauge"]
Number = int | float

# The media driver has room for tens of thousands of counters in all.
MAX_AERON_COUNTERS: Final = 6


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is known of a counter before it counts."""

    name: str
    kind: Kind
    doc: str
    unit: str
    aeron: bool
    label: str | None = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CounterValue:
    """One number at one moment, as an exporter wants it."""

    name: str
    kind: Kind
    unit: str
    doc: str
    value: Number
    labels: Mapping[str, str] = field(default_factory=dict)


class Counter:
    """Only grows."""

    __slots__ = ("_lock", "_source", "_value")

    def __init__(self) -> None:
        # `+=` is a read and a write: without the lock two threads could count as one.
        self._lock = threading.Lock()
        self._value: Number = 0
        self._source: Callable[[], Number] | None = None

    def add(self, n: Number = 1) -> None:
        with self._lock:
            self._value += n

    @property
    def value(self) -> Number:
        return self._value if self._source is None else self._source()

    def bind(self, source: Callable[[], Number]) -> None:
        """Takes the value from elsewhere, a native counter say, whenever it is read."""
        self._source = source


class Gauge(Counter):
    """Goes up and down."""

    __slots__ = ()

    def set(self, value: Number) -> None:
        with self._lock:
            self._value = value

    def raise_to(self, value: Number) -> None:
        """Keeps the highest value seen."""
        with self._lock:
            self._value = max(self._value, value)


class CounterFamily(Mapping[str, Counter]):
    """The same counter once for each value of a label: the values are a closed set."""

    __slots__ = ("_counters",)

    def __init__(self, values: Sequence[str]) -> None:
        self._counters = {value: Counter() for value in values}

    def __getitem__(self, value: str) -> Counter:
        return self._counters[value]

    def __iter__(self) -> Iterator[str]:
        return iter(self._counters)

    def __len__(self) -> int:
        return len(self._counters)

    @property
    def total(self) -> Number:
        return sum(counter.value for counter in self._counters.values())


class _Declared:
    """Stands in the class for what each instance gets of its own."""

    def __init__(
        self, kind: Kind, doc: str, unit: str, aeron: bool, label: str | None, values: Sequence[str]
    ):
        self._rest = (kind, doc, unit, aeron, label, tuple(values))
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.declaration = Declaration(name, *self._rest)


def counter(doc: str, *, unit: str, aeron: bool = False) -> Counter:
    """Declares a counter. `aeron`: also among the media driver's counters, at most six of a set."""
    return cast("Counter", _Declared("counter", doc, unit, aeron, None, ()))


def gauge(doc: str, *, unit: str, aeron: bool = False) -> Gauge:
    """Declares a gauge."""
    return cast("Gauge", _Declared("gauge", doc, unit, aeron, None, ()))


def counters_by(
    label: str, values: Sequence[str], doc: str, *, unit: str, aeron: bool = False
) -> CounterFamily:
    """Declares a counter for each value of a label. With `aeron` the total is shown there."""
    return cast("CounterFamily", _Declared("counter", doc, unit, aeron, label, values))


class CounterSet:
    """Derive from it, with the declarations as attributes. `name` is usually the role's."""

    name: ClassVar[str] = ""
    declarations: ClassVar[Mapping[str, Declaration]] = {}

    def __init_subclass__(cls, *, name: str | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if name is not None:
            cls.name = name
        own = {key: value.declaration for key, value in vars(cls).items() if isinstance(value, _Declared)}
        cls.declarations = {**cls.declarations, **own}
        shown = [one.name for one in cls.declarations.values() if one.aeron]
        if len(shown) > MAX_AERON_COUNTERS:
            raise TypeError(
                f"{cls.__name__} shows {len(shown)} Aeron counters; {MAX_AERON_COUNTERS} at most: {shown}"
            )

    def __init__(self, *, instance: str = "") -> None:
        self.instance = instance
        for declared in self.declarations.values():
            setattr(self, declared.name, _made(declared))

    def __iter__(self) -> Iterator[CounterValue]:
        for declared in self.declarations.values():
            rest = (declared.kind, declared.unit, declared.doc)
            made = getattr(self, declared.name)
            if declared.label is None:
                yield CounterValue(declared.name, *rest, made.value)
                continue
            for label_value, one in made.items():
                yield CounterValue(declared.name, *rest, one.value, {declared.label: label_value})

    def snapshot(self) -> dict[str, Number | dict[str, Number]]:
        """All values by name; those of a family by the label's value."""
        found: dict[str, Number | dict[str, Number]] = {}
        for name in self.declarations:
            made = getattr(self, name)
            found[name] = (
                {value: one.value for value, one in made.items()}
                if isinstance(made, CounterFamily)
                else made.value
            )
        return found

    def value_of(self, name: str) -> Number:
        """One value; a family's total."""
        made = getattr(self, self.declarations[name].name)
        return cast("Number", made.total if isinstance(made, CounterFamily) else made.value)


def _made(declared: Declaration) -> Counter | CounterFamily:
    if declared.label is not None:
        return CounterFamily(declared.values)
    return Gauge() if declared.kind == "gauge" else Counter()


# Aeron leaves type ids from 1000 on to applications.
COUNTER_TYPE_ID: Final = 9001
GAUGE_TYPE_ID: Final = 9002
_PERIOD_NS: Final = 100_000_000
_INT64 = 1 << 63


class AeronCounterValue(NamedTuple):
    """One of the media driver's counters, ours or not."""

    counter_id: int
    type_id: int
    value: int
    label: str
    key: bytes

    @property
    def is_tensorpool(self) -> bool:
        return self.type_id in (COUNTER_TYPE_ID, GAUGE_TYPE_ID)


def read_aeron_counters(aeron_dir: str) -> list[AeronCounterValue]:
    """All counters of the media driver in `aeron_dir`, without being its client.

    Raises MediaDriverError where there are none to read.
    """
    return [AeronCounterValue(*row) for row in _native.read_counters(aeron_dir)]


class CounterPublisher:
    """Shows the counters that were declared with `aeron=True`, six at most. An agent: its turns carry the
    values over, ten times a second. A media driver that dies is survived."""

    name = "aeron-counters"

    def __init__(self, conductor: _native.Conductor, *sets: CounterSet, clock: Clock = SYSTEM_CLOCK) -> None:
        chosen = [
            (one, name) for one in sets for name, declared in one.declarations.items() if declared.aeron
        ]
        if len(chosen) > MAX_AERON_COUNTERS:
            raise ValueError(f"{len(chosen)} Aeron counters are too many; {MAX_AERON_COUNTERS} at most")
        self._clock = clock
        self._next_ns = 0
        self._shown = [
            (
                counters,
                name,
                _native.AeronCounter(conductor, label_of(counters, name), _type_id(counters, name)),
            )
            for counters, name in chosen
        ]

    def do_work(self) -> int:
        now = self._clock.monotonic_ns()
        if now < self._next_ns:
            return 0
        self._next_ns = now + _PERIOD_NS
        self.update()
        return 0

    def update(self) -> None:
        """Carries the values over now."""
        for counters, name, shown in self._shown:
            shown.set(max(-_INT64, min(_INT64 - 1, int(counters.value_of(name)))))

    @property
    def counter_ids(self) -> dict[str, int | None]:
        """Where each stands, by its label; None while the media driver has not answered."""
        return {shown.label: shown.counter_id for _, _, shown in self._shown}

    def on_close(self) -> None:
        for _, _, shown in self._shown:
            with suppress(ForkedError):
                shown.close()

    close = on_close


def _type_id(counters: CounterSet, name: str) -> int:
    return GAUGE_TYPE_ID if counters.declarations[name].kind == "gauge" else COUNTER_TYPE_ID


def label_of(counters: CounterSet, name: str) -> str:
    """`tensorpool: recorder/lab frames (frames)`."""
    who = f"{counters.name}/{counters.instance}" if counters.instance else counters.name
    return f"tensorpool: {who} {name} ({counters.declarations[name].unit})"
