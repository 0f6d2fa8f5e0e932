"""The loop of `tensorpool top`: snapshots and keys in, screens out.

`MonitorSource` keeps a system model of its own, whether a supervisor runs or not.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ..context import Context
from ..monitor.listener import SystemMonitor
from ..monitor.snapshot import Snapshot, without_consumers
from .draw import draw, preview_size
from .keyboard import Keyboard
from .page import PageState
from .preview import FramePreview

_POLL_S: Final = 0.05
_SETTLE_PERIODS: Final = 2.5
"""A rate needs two reports of each endpoint."""


class SnapshotSource(Protocol):
    """A source of snapshots that has to be polled."""

    def poll(self) -> object:
        """Reads the messages that have arrived; to be called often."""

    def snapshot(self) -> Snapshot:
        """The system as it is now."""
        ...

    def is_settled(self, polled_s: float) -> bool:
        """Whether every endpoint had the time to report, after this many seconds of polling."""
        ...


class MonitorSource:
    """A system model on a context. Its snapshots omit the consumers in `hidden_ids`: top's own."""

    def __init__(self, context: Context) -> None:
        self._monitor = SystemMonitor(context.connection)
        limits = self._monitor.limits
        self._settle_s = _SETTLE_PERIODS * max(limits.announce_period_ns, limits.report_period_ns) / 1e9
        self.hidden_ids: set[int] = set()

    def poll(self) -> int:
        """Reads the messages that have arrived."""
        return self._monitor.poll()

    def snapshot(self) -> Snapshot:
        """The system as it is now."""
        snapshot = self._monitor.snapshot()
        return without_consumers(snapshot, self.hidden_ids) if self.hidden_ids else snapshot

    def is_settled(self, polled_s: float) -> bool:
        """Whether every endpoint had the time to report twice."""
        return polled_s >= self._settle_s

    def close(self) -> None:
        """Closes the subscriptions."""
        self._monitor.close()


def run(
    console: Console, source: SnapshotSource, preview: FramePreview, page: PageState, *, period: float
) -> None:
    """Shows the page until q, Ctrl-C, SIGTERM, or the end of the terminal."""
    due, drawn_size = time.monotonic(), (0, 0)
    with (
        _sigterm_as_interrupt(),
        Keyboard() as keyboard,
        Live(console=console, screen=True, auto_refresh=False, transient=True) as live,
        contextlib.suppress(KeyboardInterrupt),
    ):
        while not (page.done or keyboard.is_gone):
            source.poll()
            pressed = keyboard.keys(min(_POLL_S, max(0.0, due - time.monotonic())))
            for key in pressed:
                page.press(key)
            now = time.monotonic()
            if now >= due:
                page.show(source.snapshot())
                due = max(due + period, now)
            elif not pressed and tuple(console.size) == drawn_size:
                continue
            drawn_size = (console.size.width, console.size.height)
            live.update(Group(*screen_lines(page, preview, *drawn_size)), refresh=True)


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the loop like Ctrl-C, so that the terminal is restored."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def screen_lines(page: PageState, preview: FramePreview | None, width: int, height: int) -> list[Text]:
    """The lines of one screen."""
    image: Sequence[Text] = ()
    if preview is not None:
        stream_id = page.detail if page.is_preview_shown else None
        image = preview.lines(stream_id, *preview_size(width, height))
        if preview.consumer_ids:
            # The id of the preview's consumer is known only now, and the snapshot may contain it.
            page.snapshot = without_consumers(page.snapshot, preview.consumer_ids)
    return draw(page, width, height, image)


def settle(source: SnapshotSource, timeout: float, *, least: float = 0.0) -> Snapshot:
    """A snapshot in which every endpoint had the time to report twice, which rates need.

    Polls for at least `least` seconds, then until the source has settled or the timeout has passed.
    """
    started = time.monotonic()
    while True:
        source.poll()
        polled_s = time.monotonic() - started
        if polled_s >= timeout or (polled_s >= least and source.is_settled(polled_s)):
            return source.snapshot()
        time.sleep(_POLL_S)
