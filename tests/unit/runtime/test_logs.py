"""Log lines as text and JSON, and limits on repeats."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable

import pytest

from tensorpool.clock import ManualClock
from tensorpool.runtime.logs import CountWindow, Logging, RateLimiter, RepeatFilter, wants_colour

LOG = logging.getLogger("tensorpool.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines_of(log_lines, *, stream=None, **settings):
    out = stream or io.StringIO()
    with Logging("recorder", "lab", stream=out, **settings):
        log_lines()
    return out.getvalue().splitlines()


def test_text_line_has_time_level_role_message_and_fields(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.1239)
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_123_900_000)
    (line,) = lines_of(lambda: LOG.info("sealed %s", "a.arrows", extra={"rows": 512}))
    assert line == "2023-11-14 22:13:20.123Z INFO    recorder/lab: sealed a.arrows  rows=512"


def test_json_line_is_one_object_with_all_fields():
    (line,) = lines_of(lambda: LOG.warning("late", extra={"epoch": 1 << 60, "rows": 3}), form="json")
    parsed = json.loads(line)
    assert parsed.pop("time")[-1] == "Z"
    assert parsed == {
        "level": "warning",
        "role": "recorder",
        "instance": "lab",
        "logger": "tensorpool.test",
        "message": "late",
        "epoch": str(1 << 60),
        "rows": 3,
    }


def test_extra_field_cannot_replace_the_role():
    (line,) = lines_of(lambda: LOG.info("x", extra={"role": "forged"}), form="json")
    assert json.loads(line)["role"] == "recorder"


def test_error_line_has_its_traceback():
    def log_lines() -> None:
        try:
            raise OSError("disk")
        except OSError:
            LOG.exception("failed")

    text = lines_of(log_lines)
    assert text[0].endswith("failed")
    assert all(line.startswith("    ") for line in text[1:])
    assert text[-1] == "    OSError: disk"
    parsed = json.loads(lines_of(log_lines, form="json")[0])
    assert (parsed["error"], parsed["traceback"].splitlines()[-1]) == ("OSError", "OSError: disk")


@pytest.mark.parametrize("form", ["text", "json"])
def test_logged_text_cannot_forge_a_line(form):
    evil = "x\n2026-01-01 00:00:00.000Z INFO    driver: all is well\x1b[2J"
    out = lines_of(lambda: LOG.info("name %s", evil, extra={"tag": evil}), form=form)
    assert len(out) == 1
    assert "\x1b" not in out[0]


def test_log_level_applies_and_may_change():
    out = io.StringIO()
    with Logging("recorder", stream=out, level="warning") as logs:
        LOG.info("hidden")
        logs.set_level("debug")
        LOG.debug("shown")
    assert [line.partition(": ")[2] for line in out.getvalue().splitlines()] == ["shown"]


def test_close_restores_the_previous_logging():
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    lines_of(lambda: None, level="error")
    assert (root.handlers, root.level) == before


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colour_is_only_for_terminals_that_support_it(environ, wanted):
    assert wants_colour(Terminal(), environ) is wanted
    assert not wants_colour(io.StringIO(), environ)
    (line,) = lines_of(lambda: LOG.error("x"), stream=Terminal(), environ=environ)
    assert ("\x1b[31m" in line) is wanted


def test_repeats_of_one_statement_are_suppressed_and_counted():
    clock = ManualClock()

    def log_lines() -> None:
        for number in range(10):
            LOG.warning("bad frame %d", number)
        LOG.warning("something else")
        clock.advance(10)
        LOG.warning("bad frame %d", 10)

    out = [line.partition(": ")[2] for line in lines_of(log_lines, repeats=2, clock=clock)]
    assert out == [
        "bad frame 0",
        "bad frame 1",
        "something else",
        "bad frame 10  (8 more like this were suppressed)",
    ]


def test_repeats_without_a_limit_are_all_logged():
    def log_lines() -> None:
        for _ in range(100):
            LOG.info("x")

    assert len(lines_of(log_lines, repeats=0)) == 100


def test_limiter_gives_a_burst_in_each_window():
    clock = ManualClock()
    limiter = RateLimiter(burst=2, window_ns=1000, clock=clock)
    assert [limiter.admit("a") for _ in range(4)] == [0, 0, None, None]
    assert limiter.suppressed == 2
    clock.advance(ns=1000)
    assert [limiter.admit("a") for _ in range(3)] == [2, 0, None]
    assert limiter.admit("b") == 0


def test_rate_limiter_bounds_its_number_of_keys():
    limiter = RateLimiter(clock=ManualClock())
    for number in range(10_000):
        limiter.admit(number)
    assert len(limiter) <= 512


def test_repeat_filter_ignores_other_statements():
    only = RepeatFilter(1, clock=ManualClock())
    first, again, other = (logging.makeLogRecord({"msg": msg}) for msg in ("a", "a", "b"))
    assert [only.filter(first), only.filter(again), only.filter(other)] == [True, False, True]


def test_rate_limiter_survives_removal_of_a_key_in_use():
    """Logging calls filters without its lock: here another thread removes the key during `admit`."""
    clock = ManualClock()
    limiter = RateLimiter(window_ns=1000, clock=clock)
    others: list[threading.Thread] = []

    class RacingDict(OrderedDict[Hashable, CountWindow]):
        def get(self, key: object, default: object = None) -> object:  # type: ignore[override]
            window = super().get(key)
            if key == "old" and window is not None and not others:
                others.append(
                    threading.Thread(target=lambda: [limiter.admit(number) for number in range(1000)])
                )
                others[0].start()
                # Without a lock the thread is done by then; with a lock it waits for this one.
                others[0].join(0.5)
            return window

    limiter._windows = RacingDict()
    assert limiter.admit("old") == 0
    clock.advance(1.0)
    assert limiter.admit("old") == 0
    others[0].join(60)
    assert not others[0].is_alive()
