"""docs/reference/recorder.md lists exactly the recorder's states, reasons, properties, commands, methods."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from tensorpool import _native
from tensorpool.recorder import sink, state
from tensorpool.recorder.recorder import Recorder
from tensorpool.recorder.service import RecorderService
from tensorpool.recorder.state import State

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "recorder.md").read_text("utf-8")


def section(heading: str) -> str:
    return PAGE.partition(f"## {heading}")[2].partition("\n## ")[0]


def first_column(text: str) -> set[str]:
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)[`(]", row)}


def test_page_lists_every_state() -> None:
    assert first_column(section("States")) == set(get_args(State))


def test_page_lists_every_gap_reason() -> None:
    native = {reason.name for reason in _native.recorder_reasons()}
    python = {state.NOT_TRIGGERED, sink.UNFIT, sink.DISK_FULL}
    # Reasons of the consumer for frames outside its span.
    outside = {"unmapped", "epoch"}
    assert outside < {reason.name for reason in _native.drop_reasons() if not reason.is_in_span}
    assert first_column(section("The ledger, and its reasons")) == native | python | outside


def test_page_lists_every_property_and_command() -> None:
    text = section("The service")
    assert first_column(text) == set(RecorderService._properties)
    commands = set(re.findall(r"`(\w+)\(", text))
    assert commands == set(RecorderService._commands) - {"ping", "describe"}


def test_page_lists_every_method() -> None:
    public = {name for name in vars(Recorder) if not name.startswith("_")}
    named = first_column(PAGE.partition("## States")[0]) - {"Recorder"}
    assert named | {"root", "is_finished"} == public
