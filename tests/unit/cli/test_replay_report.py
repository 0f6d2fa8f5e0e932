"""The report at the end of a replay is printed once, however the replay ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tensorpool.cli.replay import show_replay


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def nothing() -> None:
    pass


class FakeReplay:
    """A replay that ends at once, with functions to run in `wait` and in `stats`."""

    def __init__(self, on_wait: Callable[[], None] = nothing, on_stats: Callable[[], None] = nothing) -> None:
        self._on_wait, self._on_stats = on_wait, on_stats

    def wait(self, timeout: float | None = None) -> bool:
        self._on_wait()
        return True

    def stats(self) -> Any:
        self._on_stats()
        return SimpleNamespace(to_json=lambda: {"frames": 3})


def fail() -> None:
    raise ValueError("failed")


@pytest.mark.parametrize(
    "replay",
    [
        pytest.param(FakeReplay(), id="the end"),
        pytest.param(FakeReplay(on_wait=ctrl_c), id="Ctrl-C while it plays"),
        pytest.param(FakeReplay(on_stats=ctrl_c), id="Ctrl-C in the instant of the report"),
        pytest.param(FakeReplay(on_wait=ctrl_c, on_stats=ctrl_c), id="Ctrl-C twice"),
        pytest.param(FakeReplay(on_wait=fail), id="an error"),
    ],
)
def test_report_is_printed_once(replay: FakeReplay, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with suppress(KeyboardInterrupt, ValueError):
        show_replay(cast("Any", replay), False, True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"frames": 3}]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
