"""Logs of a role: one line per event on stderr, as text or JSON, with role and instance.

2026-03-01 12:00:00.123Z INFO    recorder/lab: segment sealed  stream_id=10000 rows=512
{"time": "2026-03-01T12:00:00.123Z", "level": "info", "role": "recorder", "instance": "lab", …}

Values passed as `extra=` become fields. Repeats of one statement beyond a limit are suppressed; the next line
of that statement has the number of suppressed lines.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TextIO

from ..clock import SYSTEM_CLOCK, Clock
from ..text import safe_text

_REPEAT_WINDOW_NS: Final = 10_000_000_000
_MAX_KEYS: Final = 512
_SAFE_INTEGER: Final = 1 << 53
_COLOURS: Final = {logging.DEBUG: "2", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31;1"}
# Attributes of every record; any other attribute was passed as `extra=`.
_RECORD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "suppressed",
    "taskName",
}


@dataclass(slots=True)
class CountWindow:
    """The state of one key of a RateLimiter."""

    start_ns: int
    admitted: int = 0
    suppressed: int = 0
    """Events refused since the last admitted event."""


class RateLimiter:
    """Admits `burst` events of a key in each window and counts the others. May be called on any thread."""

    def __init__(
        self, *, burst: int = 1, window_ns: int = _REPEAT_WINDOW_NS, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._burst = burst
        self._window_ns = window_ns
        self._clock = clock
        self._windows: OrderedDict[Hashable, CountWindow] = OrderedDict()
        # Logging calls filters without its own lock. Reentrant: a finalizer may log while the lock is held.
        self._lock = threading.RLock()

    def admit(self, key: Hashable) -> int | None:
        """The number of suppressed events since the last admitted one; None: suppress this event."""
        with self._lock:
            return self._admit(key)

    def _admit(self, key: Hashable) -> int | None:
        now = self._clock.monotonic_ns()
        window = self._windows.get(key)
        if window is None:
            # Keys may contain text of other processes: the oldest is removed before they fill the memory.
            if len(self._windows) >= _MAX_KEYS:
                self._windows.popitem(last=False)
            self._windows[key] = CountWindow(now, admitted=1)
            return 0
        if now - window.start_ns >= self._window_ns:
            window.start_ns, window.admitted = now, 0
            self._windows.move_to_end(key)
        if window.admitted >= self._burst:
            window.suppressed += 1
            return None
        suppressed, window.suppressed = window.suppressed, 0
        window.admitted += 1
        return suppressed

    def __len__(self) -> int:
        """The number of keys that are remembered."""
        return len(self._windows)

    @property
    def suppressed(self) -> int:
        """The number of suppressed events that no admitted event has reported yet."""
        with self._lock:
            return sum(window.suppressed for window in self._windows.values())


class RepeatFilter(logging.Filter):
    """Suppresses repeats of one log statement beyond a limit."""

    def __init__(self, burst: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._limiter = RateLimiter(burst=burst, clock=clock)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged; adds the number of suppressed records to it."""
        suppressed = self._limiter.admit((record.name, record.levelno, str(record.msg)))
        if suppressed is None:
            return False
        if suppressed:
            record.suppressed = suppressed
        return True


class TextFormatter(logging.Formatter):
    """Lines of text for people."""

    def __init__(self, role: str, instance: str, *, colour: bool = False) -> None:
        super().__init__()
        self._role = f"{role}/{instance}" if instance else role
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, with its traceback below."""
        level = record.levelname.ljust(7)
        code = _COLOURS.get(record.levelno)
        if self._colour and code:
            level = f"\x1b[{code}m{level}\x1b[0m"
        parts = [f"{_utc(record, ' ')} {level} {self._role}: {safe_text(record.getMessage())}"]
        parts += [f"{name}={safe_text(str(value))}" for name, value in _extras(record).items()]
        if suppressed := getattr(record, "suppressed", 0):
            parts.append(f"({suppressed} more like this were suppressed)")
        line = "  ".join(parts)
        if record.exc_info:
            line += "\n" + "\n".join(f"    {safe_text(row)}" for row in _traceback(self, record).splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """JSON for programs: one object per line. Integers that a double cannot hold are strings."""

    def __init__(self, role: str, instance: str) -> None:
        super().__init__()
        self._identity = {"role": role, "instance": instance}

    def format(self, record: logging.LogRecord) -> str:
        """The record as one JSON object."""
        line: dict[str, object] = {
            "time": _utc(record, "T"),
            "level": record.levelname.lower(),
            **self._identity,
        }
        line |= {"logger": record.name, "message": record.getMessage()}
        for name, value in _extras(record).items():
            line.setdefault(name, _json_value(value))
        if suppressed := getattr(record, "suppressed", 0):
            line["suppressed"] = suppressed
        if record.exc_info:
            line["error"] = record.exc_info[0].__name__ if record.exc_info[0] else None
            line["traceback"] = _traceback(self, record)
        try:
            return _safe_json(json.dumps(line, ensure_ascii=False, default=str, allow_nan=False))
        except ValueError:
            # JSON has no NaN and no infinity: they are written as text.
            line = {name: str(value) if isinstance(value, float) else value for name, value in line.items()}
            return _safe_json(json.dumps(line, ensure_ascii=False, default=str))


class Logging:
    """The logging of this process, from `install()` (or `with`) to `close()`, which restores the old one."""

    def __init__(
        self,
        role: str,
        instance: str = "",
        *,
        form: str = "text",
        level: str = "info",
        repeats: int = 20,
        stream: TextIO | None = None,
        clock: Clock = SYSTEM_CLOCK,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        out = sys.stderr if stream is None else stream
        self._handler = logging.StreamHandler(out)
        self._handler.setFormatter(
            JsonFormatter(role, instance)
            if form == "json"
            else TextFormatter(role, instance, colour=wants_colour(out, environ))
        )
        if repeats:
            self._handler.addFilter(RepeatFilter(repeats, clock=clock))
        self._level = level
        self._before: tuple[list[logging.Handler], int] | None = None

    def install(self) -> None:
        """Replaces the handlers of the root logger."""
        root = logging.getLogger()
        self._before = (root.handlers[:], root.level)
        root.handlers[:] = [self._handler]
        self.set_level(self._level)

    def set_level(self, level: str) -> None:
        """Changes the level, also while the role runs."""
        self._level = level
        logging.getLogger().setLevel(level.upper())

    def close(self) -> None:
        """Restores the handlers and level of the root logger. Does nothing when closed already."""
        if self._before is None:
            return
        root = logging.getLogger()
        root.handlers[:], level = self._before
        root.setLevel(level)
        self._before = None
        self._handler.flush()

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def wants_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to write colours: on a terminal that supports them, unless NO_COLOR is set."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb" and stream.isatty()


def _utc(record: logging.LogRecord, between: str) -> str:
    form = f"%Y-%m-%d{between}%H:%M:%S"
    return f"{time.strftime(form, time.gmtime(record.created))}.{int(record.msecs):03}Z"


def _safe_json(text: str) -> str:
    """The JSON text with JSON escapes for characters that are not printable, such as U+009B."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _RECORD_ATTRIBUTES}


def _json_value(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _SAFE_INTEGER:
        return str(value)
    return value


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""
