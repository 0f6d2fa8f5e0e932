"""The result that the demo prints at the end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tensorpool.demo.checks import RecordingCheck, ReplayCheck
from tensorpool.demo.run import DemoResult, print_result


@pytest.mark.parametrize(
    ("replay", "expected", "unexpected"),
    [
        (ReplayCheck(), "ended early: nothing was replayed", "checksums equal"),
        (ReplayCheck(replayed=7, equal=7), "✓ replayed at speed 4: 7 frames, 7 checksums equal", "early"),
    ],
)
def test_replay_is_mentioned_only_if_it_happened(replay: ReplayCheck, expected: str, unexpected: str) -> None:
    console = Console(file=io.StringIO(), width=100)
    print_result(console, DemoResult([], RecordingCheck(), replay))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert expected in text
    assert unexpected not in text
