"""The report at the end of a replay comes once, whatever ends it and whenever that comes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tensorpool.cli.replay import _run


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def nothing() -> None:
    pass


class Playing:
    """A replay that is over at once; what happens while it is waited for, and while it is asked, is given."""

    def __init__(self, waited: Callable[[], None] = nothing, asked: Callable[[], None] = nothing) -> None:
        self._waited, self._asked = waited, asked

    def wait(self, timeout: float | None = None) -> bool:
        self._waited()
        return True

    def stats(self) -> Any:
        self._asked()
        return SimpleNamespace(to_json=lambda: {"frames": 3})


def broken() -> None:
    raise ValueError("broken")


@pytest.mark.parametrize(
    "playing",
    [
        pytest.param(Playing(), id="the end"),
        pytest.param(Playing(waited=ctrl_c), id="Ctrl-C while it plays"),
        pytest.param(Playing(asked=ctrl_c), id="Ctrl-C in the instant of the report"),
        pytest.param(Playing(waited=ctrl_c, asked=ctrl_c), id="Ctrl-C twice"),
        pytest.param(Playing(waited=broken), id="an error"),
    ],
)
def test_the_report_comes_once(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with suppress(KeyboardInterrupt, ValueError):
        _run(cast("Any", playing), False, True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"frames": 3}]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
