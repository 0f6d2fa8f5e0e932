"""Logs of a role: one line an event on stderr, for people or for machines, with who says it.

2026-03-01 12:00:00.123Z INFO    recorder/lab: segment sealed  stream_id=10000 rows=512
{"time": "2026-03-01T12:00:00.123Z", "level": "info", "role": "recorder", "instance": "lab", …}

What is passed as `extra=` becomes a field. Repeats of one statement beyond a limit are counted, and the
next line that comes through says how many were left out.
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
from types import TracebackType
from typing import Any, Final, Self, TextIO

from ..clock import SYSTEM_CLOCK, Clock

_REPEAT_WINDOW_NS: Final = 10_000_000_000
_MAX_KEYS: Final = 512
_SAFE_INTEGER: Final = 1 << 53
_COLOURS: Final = {logging.DEBUG: "2", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31;1"}
# What every record has; anything else came by `extra=`.
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "suppressed", "taskName"}


class RateLimiter:
    """Lets `burst` events of a kind through in each window, and counts the rest. Any thread may ask."""

    def __init__(
        self, *, burst: int = 1, window_ns: int = _REPEAT_WINDOW_NS, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._burst = burst
        self._window_ns = window_ns
        self._clock = clock
        # key → [start of its window, let through in it, left out since the last that came through]
        self._seen: OrderedDict[Hashable, list[int]] = OrderedDict()
        # Logging filters before it takes its own lock. Reentrant: a finalizer may log in the middle of it.
        self._lock = threading.RLock()

    def admit(self, key: Hashable) -> int | None:
        """None to leave it out; else how many of its kind were left out before it."""
        with self._lock:
            return self._admit(key)

    def _admit(self, key: Hashable) -> int | None:
        now = self._clock.monotonic_ns()
        state = self._seen.get(key)
        if state is None:
            # Kinds may come from outside: the oldest is forgotten before they fill the memory.
            if len(self._seen) >= _MAX_KEYS:
                self._seen.popitem(last=False)
            self._seen[key] = [now, 1, 0]
            return 0
        if now - state[0] >= self._window_ns:
            state[:2] = [now, 0]
            self._seen.move_to_end(key)
        if state[1] >= self._burst:
            state[2] += 1
            return None
        suppressed, state[2] = state[2], 0
        state[1] += 1
        return suppressed

    @property
    def suppressed(self) -> int:
        """Left out, and not yet told by a later line."""
        with self._lock:
            return sum(state[2] for state in self._seen.values())


class RepeatFilter(logging.Filter):
    """Holds back what one statement says over and over."""

    def __init__(self, burst: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._limiter = RateLimiter(burst=burst, clock=clock)

    def filter(self, record: logging.LogRecord) -> bool:
        suppressed = self._limiter.admit((record.name, record.levelno, str(record.msg)))
        if suppressed is None:
            return False
        if suppressed:
            record.suppressed = suppressed
        return True


class TextFormatter(logging.Formatter):
    """For people."""

    def __init__(self, role: str, instance: str, *, colour: bool = False) -> None:
        super().__init__()
        self._who = f"{role}/{instance}" if instance else role
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.ljust(7)
        code = _COLOURS.get(record.levelno)
        if self._colour and code:
            level = f"\x1b[{code}m{level}\x1b[0m"
        parts = [f"{_utc(record, ' ')} {level} {self._who}: {_one_line(record.getMessage())}"]
        parts += [f"{name}={_one_line(str(value))}" for name, value in _extras(record).items()]
        if suppressed := getattr(record, "suppressed", 0):
            parts.append(f"({suppressed} more like this were suppressed)")
        line = "  ".join(parts)
        if record.exc_info:
            line += "\n" + "\n".join(f"    {row}" for row in _traceback(self, record).splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """For machines: one object a line. Integers that a double cannot hold are strings."""

    def __init__(self, role: str, instance: str) -> None:
        super().__init__()
        self._who = {"role": role, "instance": instance}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"time": _utc(record, "T"), "level": record.levelname.lower(), **self._who}
        line |= {"logger": record.name, "message": record.getMessage()}
        for name, value in _extras(record).items():
            line.setdefault(name, _json_value(value))
        if suppressed := getattr(record, "suppressed", 0):
            line["suppressed"] = suppressed
        if record.exc_info:
            line["error"] = record.exc_info[0].__name__ if record.exc_info[0] else None
            line["traceback"] = _traceback(self, record)
        try:
            return json.dumps(line, ensure_ascii=False, default=str, allow_nan=False)
        except ValueError:
            # JSON has no NaN and no infinity: they go as text.
            line = {name: str(value) if isinstance(value, float) else value for name, value in line.items()}
            return json.dumps(line, ensure_ascii=False, default=str)


class Logging:
    """The logs of this process, from `install()` (or `with`) until `close()`, which puts back what was."""

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
        root = logging.getLogger()
        self._before = (root.handlers[:], root.level)
        root.handlers[:] = [self._handler]
        self.set_level(self._level)

    def set_level(self, level: str) -> None:
        """May change while the role runs."""
        self._level = level
        logging.getLogger().setLevel(level.upper())

    def close(self) -> None:
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
    """Only on a terminal that has them, and never where NO_COLOR is set."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb" and stream.isatty()


def _utc(record: logging.LogRecord, between: str) -> str:
    form = f"%Y-%m-%d{between}%H:%M:%S"
    return f"{time.strftime(form, time.gmtime(record.created))}.{int(record.msecs):03}Z"


def _one_line(text: str) -> str:
    """Text from outside must not be able to forge a line of its own, nor speak to the terminal."""
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode() for ch in text)


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def _json_value(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _SAFE_INTEGER:
        return str(value)
    return value


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""
