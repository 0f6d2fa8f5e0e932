"""The few counters of a role that stand among the media driver's, for AeronStat and for our own tools."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ForkedError
from .counters import MAX_AERON_COUNTERS, CounterSet

# Aeron leaves type ids from 1000 on to applications.
COUNTER_TYPE_ID: Final = 9001
GAUGE_TYPE_ID: Final = 9002
_PERIOD_NS: Final = 100_000_000
_INT64 = 1 << 63


class AeronReading(NamedTuple):
    """One of the media driver's counters, ours or not."""

    counter_id: int
    type_id: int
    value: int
    label: str
    key: bytes

    @property
    def is_tensorpool(self) -> bool:
        return self.type_id in (COUNTER_TYPE_ID, GAUGE_TYPE_ID)


def read_aeron_counters(aeron_dir: str) -> list[AeronReading]:
    """All counters of the media driver in `aeron_dir`, without being its client.

    Raises MediaDriverError where there are none to read.
    """
    return [AeronReading(*row) for row in _native.read_counters(aeron_dir)]


class AeronExposure:
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
