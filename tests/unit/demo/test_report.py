"""What the demo says at the end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tensorpool.demo.checks import RecordingCheck, ReplayCheck
from tensorpool.demo.run import DemoResult, _report


@pytest.mark.parametrize(
    ("played", "said", "unsaid"),
    [
        (ReplayCheck(), "ended early: nothing was played back", "replayed"),
        (ReplayCheck(played=7, equal=7), "✓ replayed at speed 4: 7 frames, 7 checksums equal", "early"),
    ],
)
def test_a_replay_that_did_not_happen_is_not_praised(played: ReplayCheck, said: str, unsaid: str) -> None:
    console = Console(file=io.StringIO(), width=100)
    _report(console, [], None, RecordingCheck(), DemoResult(played), [], as_json=False)
    assert isinstance(console.file, io.StringIO)
    words = console.file.getvalue()
    assert said in words
    assert unsaid not in words
