"""Counters: the named numbers of a role, each with a kind, a unit and a description; their Aeron counters.

class RecorderCounters(CounterSet, name="recorder"):
    frames = counter("Frames written to a segment.", unit="frames", aeron=True)
    backlog = gauge("Bytes not yet written to disk.", unit="bytes")
    dropped = counters_by("reason", ["late", "no_room"], "Frames not written.", unit="frames")

counters = RecorderCounters(instance="lab")
counters.frames.add()
counters.dropped["late"].add(3)
counters.snapshot()      # {"frames": 1, "backlog": 0, "dropped": {"late": 3, "no_room": 0}}

Any thread may count, and any thread may read. `CounterPublisher` copies a few counters of a role into the
media driver's counters file, for AeronStat and `tensorpool` tools.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias, cast

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ForkedError
from ..units import INT64_LIMIT

Kind = Literal["counter", "gauge"]
Number = int | float
CounterSnapshot: TypeAlias = dict[str, Number | dict[str, Number]]
"""The values of a counter set by name; of a family, by label value."""

# The media driver has room for tens of thousands of counters, shared by all its clients.
MAX_AERON_COUNTERS: Final = 6
# Aeron reserves type ids from 1000 on for applications.
COUNTER_TYPE_ID: Final = 9001
GAUGE_TYPE_ID: Final = 9002
_PERIOD_NS: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class Declaration:
    """The declaration of one counter."""

    name: str
    kind: Kind
    doc: str
    unit: str
    aeron: bool
    label: str | None = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CounterValue:
    """The value of one counter at one time, for exporters."""

    name: str
    kind: Kind
    unit: str
    doc: str
    value: Number
    labels: Mapping[str, str] = field(default_factory=dict)


class Counter:
    """A number that only grows."""

    __slots__ = ("_lock", "_source", "_value")

    def __init__(self) -> None:
        # `+=` is a read and a write: without the lock, two threads could lose a count.
        self._lock = threading.Lock()
        self._value: Number = 0
        self._source: Callable[[], Number] | None = None

    def add(self, n: Number = 1) -> None:
        """Adds to the value."""
        with self._lock:
            self._value += n

    @property
    def value(self) -> Number:
        """The current value."""
        return self._value if self._source is None else self._source()

    def bind(self, source: Callable[[], Number]) -> None:
        """Reads the value from a function from now on, for example from a native counter."""
        self._source = source


class Gauge(Counter):
    """A number that may grow and shrink."""

    __slots__ = ()

    def set(self, value: Number) -> None:
        """Replaces the value."""
        with self._lock:
            self._value = value

    def raise_to(self, value: Number) -> None:
        """Replaces the value if the new one is larger."""
        with self._lock:
            self._value = max(self._value, value)


class CounterFamily(Mapping[str, Counter]):
    """One counter for each value of a label. The set of values is fixed."""

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
        """The sum over all values of the label."""
        return sum(counter.value for counter in self._counters.values())


class _Declared:
    """The class attribute of a declaration; instances get a counter under the same name."""

    def __init__(
        self, kind: Kind, doc: str, unit: str, aeron: bool, label: str | None, values: Sequence[str]
    ):
        self._rest = (kind, doc, unit, aeron, label, tuple(values))
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.declaration = Declaration(name, *self._rest)


def counter(doc: str, *, unit: str, aeron: bool = False) -> Counter:
    """Declares a counter. `aeron`: CounterPublisher publishes it; at most six per set."""
    return cast("Counter", _Declared("counter", doc, unit, aeron, None, ()))


def gauge(doc: str, *, unit: str, aeron: bool = False) -> Gauge:
    """Declares a gauge. `aeron`: CounterPublisher publishes it."""
    return cast("Gauge", _Declared("gauge", doc, unit, aeron, None, ()))


def counters_by(
    label: str, values: Sequence[str], doc: str, *, unit: str, aeron: bool = False
) -> CounterFamily:
    """Declares a counter for each value of a label. `aeron`: CounterPublisher publishes the total."""
    return cast("CounterFamily", _Declared("counter", doc, unit, aeron, label, values))


class CounterSet:
    """Base class of a role's counters: declarations are class attributes, `name` is usually the role's."""

    name: ClassVar[str] = ""
    declarations: ClassVar[Mapping[str, Declaration]] = {}

    def __init_subclass__(cls, *, name: str | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if name is not None:
            cls.name = name
        own = {key: value.declaration for key, value in vars(cls).items() if isinstance(value, _Declared)}
        cls.declarations = {**cls.declarations, **own}
        published = [declaration.name for declaration in cls.declarations.values() if declaration.aeron]
        if len(published) > MAX_AERON_COUNTERS:
            raise TypeError(
                f"{cls.__name__} has {len(published)} Aeron counters, more than {MAX_AERON_COUNTERS}; "
                f"remove aeron=True from some of {published}"
            )

    def __init__(self, *, instance: str = "") -> None:
        self.instance = instance
        for declaration in self.declarations.values():
            setattr(self, declaration.name, _new_counter(declaration))

    def __iter__(self) -> Iterator[CounterValue]:
        for declaration in self.declarations.values():
            name, label = declaration.name, declaration.label
            rest = (declaration.kind, declaration.unit, declaration.doc)
            member = getattr(self, name)
            if label is None:
                yield CounterValue(name, *rest, member.value)
                continue
            for label_value, labelled in member.items():
                yield CounterValue(name, *rest, labelled.value, {label: label_value})

    def snapshot(self) -> CounterSnapshot:
        """All values by name; the values of a family by label value."""
        values: CounterSnapshot = {}
        for name in self.declarations:
            member = getattr(self, name)
            values[name] = (
                {label_value: labelled.value for label_value, labelled in member.items()}
                if isinstance(member, CounterFamily)
                else member.value
            )
        return values

    def value_of(self, name: str) -> Number:
        """The value of one counter; the total of a family."""
        member = getattr(self, self.declarations[name].name)
        return cast("Number", member.total if isinstance(member, CounterFamily) else member.value)


def _new_counter(declaration: Declaration) -> Counter | CounterFamily:
    if declaration.label is not None:
        return CounterFamily(declaration.values)
    return Gauge() if declaration.kind == "gauge" else Counter()


class AeronCounterValue(NamedTuple):
    """One counter of the media driver's counters file, of any client."""

    counter_id: int
    type_id: int
    value: int
    label: str
    key: bytes

    @property
    def is_tensorpool(self) -> bool:
        """Whether a CounterPublisher published it."""
        return self.type_id in (COUNTER_TYPE_ID, GAUGE_TYPE_ID)


def read_aeron_counters(aeron_dir: str) -> list[AeronCounterValue]:
    """All counters of the media driver in `aeron_dir`, read from its file without an Aeron client.

    Raises MediaDriverError where the file cannot be read.
    """
    return [
        AeronCounterValue(reading.counter_id, reading.type_id, reading.value, reading.label, reading.key)
        for reading in _native.read_counters(aeron_dir)
    ]


class CounterPublisher:
    """Publishes the counters declared with `aeron=True`, six at most, as Aeron counters.

    An agent: its duty cycles copy the values ten times a second. It survives the death of a media driver.
    """

    name = "aeron-counters"

    def __init__(self, conductor: _native.Conductor, *sets: CounterSet, clock: Clock = SYSTEM_CLOCK) -> None:
        chosen = [
            (counters, name)
            for counters in sets
            for name, declaration in counters.declarations.items()
            if declaration.aeron
        ]
        if len(chosen) > MAX_AERON_COUNTERS:
            raise ValueError(
                f"{len(chosen)} Aeron counters are more than {MAX_AERON_COUNTERS}; pass fewer counter sets"
            )
        self._clock = clock
        self._next_ns = 0
        self._published = [
            (
                counters,
                name,
                _native.AeronCounter(conductor, label_of(counters, name), _type_id(counters, name)),
            )
            for counters, name in chosen
        ]

    def do_work(self) -> int:
        """Updates the Aeron counters once a period."""
        now = self._clock.monotonic_ns()
        if now < self._next_ns:
            return 0
        self._next_ns = now + _PERIOD_NS
        self.update()
        return 0

    def update(self) -> None:
        """Copies the values now."""
        for counters, name, aeron_counter in self._published:
            value = int(counters.value_of(name))
            aeron_counter.set(max(-INT64_LIMIT, min(INT64_LIMIT - 1, value)))

    @property
    def counter_ids(self) -> dict[str, int | None]:
        """The Aeron counter id of each label; None until the media driver has answered."""
        return {aeron_counter.label: aeron_counter.counter_id for _, _, aeron_counter in self._published}

    def on_close(self) -> None:
        """Removes the Aeron counters."""
        for _, _, aeron_counter in self._published:
            with suppress(ForkedError):
                aeron_counter.close()

    close = on_close


def _type_id(counters: CounterSet, name: str) -> int:
    return GAUGE_TYPE_ID if counters.declarations[name].kind == "gauge" else COUNTER_TYPE_ID


def label_of(counters: CounterSet, name: str) -> str:
    """The label of an Aeron counter: `tensorpool: recorder/lab frames (frames)`."""
    role = f"{counters.name}/{counters.instance}" if counters.instance else counters.name
    return f"tensorpool: {role} {name} ({counters.declarations[name].unit})"
