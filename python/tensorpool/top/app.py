"""`tensorpool top`: the loop around the page.

Where `tensorpool top` has its snapshots from: a picture of its own, whether a supervisor runs or not.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ..context import Context
from ..monitor.listener import SystemMonitor
from ..monitor.snapshot import Snapshot, StreamView
from .draw import draw, preview_size
from .keyboard import Keyboard
from .page import PageState
from .preview import FramePreview

# Rates need two reports of everybody.
_PERIODS: Final = 2.5


class MonitorSource:
    """Ears and a picture on a context. `own` are consumers of ours, which nobody wants to see."""

    def __init__(self, context: Context) -> None:
        self._monitor = SystemMonitor(context.connection)
        limits = self._monitor.limits
        self._settle_s = _PERIODS * max(limits.announce_period_ns, limits.report_period_ns) / 1e9
        self.own: set[int] = set()

    def poll(self) -> int:
        return self._monitor.poll()

    def snapshot(self) -> Snapshot:
        found = self._monitor.snapshot()
        return without(found, self.own) if self.own else found

    def is_settled(self, listened_s: float) -> bool:
        return listened_s >= self._settle_s

    def close(self) -> None:
        self._monitor.close()


def without(snapshot: Snapshot, consumer_ids: set[int]) -> Snapshot:
    """The same without these consumers."""
    return replace(snapshot, streams=tuple(_without(one, consumer_ids) for one in snapshot.streams))


def _without(stream: StreamView, consumer_ids: set[int]) -> StreamView:
    left = tuple(one for one in stream.consumers if one.consumer_id not in consumer_ids)
    if len(left) == len(stream.consumers):
        return stream
    dropped: Counter[str] = Counter()
    for one in left:
        dropped.update(one.dropped)
    return replace(stream, consumers=left, dropped=dropped)


_LISTEN_S: Final = 0.05


class SnapshotSource(Protocol):
    """Where snapshots come from."""

    def poll(self) -> object:
        """Takes in what was heard; often."""

    def snapshot(self) -> Snapshot:
        """The system as it is now."""
        ...

    def is_settled(self, listened_s: float) -> bool:
        """Whether everybody had the time to be heard of."""
        ...


def run(
    console: Console, feed: SnapshotSource, newest: FramePreview, page: PageState, *, period: float
) -> None:
    """Until q, Ctrl-C, or the end of the terminal."""
    due, drawn = time.monotonic(), (0, 0)
    with (
        _ended_by_sigterm(),
        Keyboard() as keyboard,
        Live(console=console, screen=True, auto_refresh=False, transient=True) as live,
        contextlib.suppress(KeyboardInterrupt),
    ):
        while not (page.done or keyboard.is_gone):
            feed.poll()
            pressed = keyboard.keys(min(_LISTEN_S, max(0.0, due - time.monotonic())))
            for key in pressed:
                page.press(key)
            now = time.monotonic()
            if now >= due:
                page.show(feed.snapshot())
                due = max(due + period, now)
            elif not pressed and tuple(console.size) == drawn:
                continue
            drawn = (console.size.width, console.size.height)
            live.update(Group(*frame(page, newest, *drawn)), refresh=True)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Like Ctrl-C: whoever ends it must not be left with a screen that is not theirs."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def frame(page: PageState, newest: FramePreview | None, width: int, height: int) -> list[Text]:
    """One look at everything."""
    picture: Sequence[Text] = ()
    if newest is not None:
        wanted = page.detail if page.wants_picture else None
        picture = newest.look(wanted, *preview_size(width, height))
        if newest.own:
            # Its id is known only now, and the snapshot may have it already.
            page.snapshot = without(page.snapshot, newest.own)
    return draw(page, width, height, picture)


def settle(feed: SnapshotSource, timeout: float, *, least: float = 0.0) -> Snapshot:
    """A snapshot in which everybody has had the time to speak: rates need two reports of each.

    Listens for `least` seconds, and then until nothing more is to come, or the time is over.
    """
    began = time.monotonic()
    while True:
        feed.poll()
        passed = time.monotonic() - began
        if passed >= timeout or (passed >= least and feed.is_settled(passed)):
            return feed.snapshot()
        time.sleep(_LISTEN_S)
