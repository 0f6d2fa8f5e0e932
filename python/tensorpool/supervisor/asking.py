"""Asks services how they stand, without waiting: questions go out now and then, answers come as events. Pure.

Pings tell who is there; drivers, recorders and bridges are then asked for more.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ..service import Event
from ..service.events import ALL_SERVICES, RESULT
from .events import (
    BridgeTold,
    DriverTold,
    LeasesTold,
    RecorderTold,
    ServiceSeen,
    Unheard,
    WrittenTold,
    read_json,
    rows,
    text,
    whole,
)
from .reading import Word

_MOST_OPEN: Final = 4096
_MOST_ROWS: Final = 50_000
_QUESTIONS: Final = {
    "driver": ("status()", "leases()"),
    "recorder": ("status()", "ledger()"),
    "bridge": ("status()",),
}
"""What is asked of whom; of everybody else a ping is enough."""


@dataclass(slots=True)
class _Open:
    """A question that was asked, and what came so far where answers come in parts."""

    service: str
    key: str
    rows: list[dict[str, Any]] = field(default_factory=list)


class Asking:
    """Questions out, facts in. Whoever asks the same of the same services does not get in its way."""

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._due_ns = 0
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._next_id = (secrets.randbits(31) | 1) << 32

    def due(self, now_ns: int) -> Iterator[Event]:
        """The questions that it is time for."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + self._period_ns
        yield self._ask(ALL_SERVICES, "", "ping()")
        for service, keys in _QUESTIONS.items():
            for key in keys:
                yield self._ask(f"service:{service}", service, key)

    def on_word(self, word: Word) -> tuple[list[object], list[Event]]:
        """What an answer tells, and what is to be asked on."""
        question = self._open.get(word.correlation_id)
        if question is None or word.key != question.key + RESULT:
            return [], []
        found = read_json(word.value)
        try:
            return self._read(word.tag, question, found)
        except (ValueError, KeyError, TypeError):
            return [Unheard("service")], []

    def _read(self, tag: str, question: _Open, found: Any) -> tuple[list[object], list[Event]]:
        match question.service, question.key:
            case "", _:
                instance = found["instance"]
                return [
                    ServiceSeen(
                        tag,
                        text(found["name"]),
                        "" if instance is None else text(instance),
                        whole(found["pid"]),
                    )
                ], []
            case "driver", "status()":
                return [DriverTold(tag, dict(found))], []
            case "driver", _:
                return self._leases(tag, question, found)
            case "recorder", "status()":
                return [RecorderTold(tag, dict(found))], []
            case "recorder", _:
                return [WrittenTold(tag, _checked(found))], []
            case _:
                return self._bridge(tag, question, found)

    def _leases(self, tag: str, question: _Open, found: Any) -> tuple[list[object], list[Event]]:
        part = _checked(found)
        # Several may answer the same question: what one has is not the other's.
        so_far = [*question.rows, *part]
        if part and len(so_far) < _MOST_ROWS:
            first = whole(part[-1]["lease_id"]) + 1
            return [], [self._ask(tag, "driver", "leases()", f'{{"first": "{first}"}}', so_far)]
        return [LeasesTold(tag, tuple(so_far))], []

    def _bridge(self, tag: str, question: _Open, found: Any) -> tuple[list[object], list[Event]]:
        part = _checked(found["mappings"])
        so_far = [*question.rows, *part]
        if part and len(so_far) < min(whole(found["total"]), _MOST_ROWS):
            first = f'{{"first": {len(so_far)}}}'
            return [], [self._ask(tag, "bridge", "status()", first, so_far)]
        return [BridgeTold(tag, whole(found["pid"]), tuple(so_far))], []

    def _ask(
        self,
        tag: str,
        service: str,
        key: str,
        value: str | None = None,
        so_far: list[dict[str, Any]] | None = None,
    ) -> Event:
        self._next_id += 1
        self._open[self._next_id] = _Open(service, key, so_far or [])
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        return Event(tag, key, value if value is not None or key == "ping()" else "{}", self._next_id)


def _checked(found: Any) -> tuple[dict[str, Any], ...]:
    part = rows(found)
    if part is None:
        raise ValueError("not rows")
    return part
