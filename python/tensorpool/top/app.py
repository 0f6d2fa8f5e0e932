"""`tensorpool top`: the loop around the page."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ..monitor.snapshot import Snapshot
from .detail import picture_size
from .draw import draw
from .feed import without
from .newest import Newest
from .page import Page
from .terminal import Keyboard

_LISTEN_S: Final = 0.05


class Feed(Protocol):
    """Where snapshots come from."""

    def poll(self) -> object:
        """Takes in what was heard; often."""

    def snapshot(self) -> Snapshot:
        """The system as it is now."""
        ...

    def is_settled(self, listened_s: float) -> bool:
        """Whether everybody had the time to be heard of."""
        ...


def run(console: Console, feed: Feed, newest: Newest, page: Page, *, period: float) -> None:
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


def frame(page: Page, newest: Newest | None, width: int, height: int) -> list[Text]:
    """One look at everything."""
    picture: Sequence[Text] = ()
    if newest is not None:
        wanted = page.detail if page.wants_picture else None
        picture = newest.look(wanted, *picture_size(width, height))
        if newest.own:
            # Its id is known only now, and the snapshot may have it already.
            page.snapshot = without(page.snapshot, newest.own)
    return draw(page, width, height, picture)


def settle(feed: Feed, timeout: float, *, least: float = 0.0) -> Snapshot:
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
