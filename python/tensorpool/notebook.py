"""Live streams in a notebook: `tensorpool.notebook.live("camera-1")`.

Frames come from the reader of the console: a consumer of its own with a rate limit, which reads the newest
frame when one is due, thins it to the size that is shown, and slows no producer down. Frames, ledgers,
recordings and discovered streams show themselves: see their `_repr_html_`. Needs the extra `notebook`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from html import escape
from types import TracebackType
from typing import Any, Final, Protocol, Self

from .client import ReportOptions
from .console.frames import MAX_HZ, MAX_SIDE, FrameView, StreamReader, Watch, elements_of, unpack_message
from .context import Context
from .context import open as open_context
from .errors import ConfigError
from .preview import array_html, frame_html
from .text import html_table

_NUMBER: Final = 1


class DisplayHandle(Protocol):
    """Where a view is shown, and shown again."""

    def update(self, obj: Any, /) -> None:
        """Replaces what is shown."""
        ...


def live(stream: int | str, *, hz: float = 5.0, side: int = 512, context: Context | None = None) -> LiveView:
    """Shows the newest frames of a stream, by id or name, below the cell that calls it.

    At most `hz` frames a second are read, and their longer side has at most `side` pixels. Without a
    `context` the view opens one on this machine's media driver, and closes it at its end. `view.close()`, a
    `with` block or the end of the kernel ends it; a second view of the same cell needs no care.
    """
    try:
        from IPython.display import HTML, display
    except ImportError:
        raise ConfigError(
            "a live view needs IPython; install it with pip install 'aeron-tensorpool[notebook]'"
        ) from None
    if not 0.1 <= hz <= MAX_HZ:
        raise ConfigError(f"hz = {hz:g}: a live view shows 0.1 to {MAX_HZ:g} frames a second")
    if not 1 <= side <= MAX_SIDE:
        raise ConfigError(f"side = {side}: a live view has 1 to {MAX_SIDE} pixels along its longer side")
    handle: DisplayHandle | None = display(HTML("<p>Waiting for a frame.</p>"), display_id=True)
    if handle is None:
        raise ConfigError("a live view needs a notebook; use frame.show() elsewhere")
    owned = None
    if context is None:
        # It only watches: it embeds no driver, takes no lease and does not report on itself.
        context = owned = open_context("standalone", media_driver="external")
        owned.report_options = ReportOptions.none()
    try:
        stream_id = context.find_stream(stream)
        return LiveView(
            context, stream_id, lambda html: handle.update(HTML(html)), hz=hz, side=side, owned_context=owned
        )
    except BaseException:
        if owned is not None:
            owned.close()
        raise


class LiveView:
    """The newest frames of a stream. `show` gets HTML, on a thread of the view, a few times a second."""

    def __init__(
        self,
        context: Context,
        stream_id: int,
        show: Callable[[str], None],
        *,
        hz: float = 5.0,
        side: int = 512,
        owned_context: Context | None = None,
    ) -> None:
        self.stream_id = stream_id
        self.frames = 0
        """Frames that were shown."""
        self._show = show
        self._side = side
        self._owned_context = owned_context
        self._is_closed = False
        self._lock = threading.Lock()
        self._reader = StreamReader(context, stream_id, max_hz=hz)
        view = FrameView(max_rows=side, max_columns=side)
        self._reader.add(Watch(_NUMBER, stream_id, self._on_message, view, hz))

    def _on_message(self, message: bytes) -> None:
        """Runs on the reader's thread."""
        html = message_html(message, self._side)
        with self._lock:
            if self._is_closed:
                return
            self._show(html)
            self.frames += 1
        self._reader.on_drawn(_NUMBER)

    @property
    def closed(self) -> bool:
        """Whether the view has ended."""
        return self._is_closed

    def close(self) -> None:
        """Ends the view; the last frame stays where it is shown."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._reader.close()
        if self._owned_context is not None:
            self._owned_context.close()

    def wait(self, frames: int, timeout: float = 10.0) -> bool:
        """Waits until so many frames were shown; False after the time."""
        deadline = time.monotonic() + timeout
        while self.frames < frames and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.frames >= frames

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "live"
        return f"<LiveView stream={self.stream_id} {state} frames={self.frames}>"


def message_html(message: bytes, side: int = 512) -> str:
    """A message of the console's reader as HTML: the image or line, and the facts of the frame."""
    header, payload = unpack_message(message)
    if "elements" not in header:
        return f"<p>{escape(header.get('why') or 'This frame cannot be shown.')}</p>"
    rate = header.get("rate_hz")
    facts = html_table(
        {
            "stream": header["stream"],
            "seq": header["seq"],
            "shape": " x ".join(map(str, header["shape"])),
            "dtype": header["type"],
            "rate": "unknown" if rate is None else f"{rate:.1f} Hz",
            "age": f"{header['age_ms']:.0f} ms",
        }
    )
    return frame_html(array_html(elements_of(header, payload), side), facts)
