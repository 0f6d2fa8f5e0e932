"""The newest frame of the stream whose details are shown: a consumer that looks now and then.

It is one of those that skip: it holds nobody up, and takes no lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from ..client import Consumer
from ..context import Context
from ..errors import FrameOverwritten, RegionRejected, TensorPoolError
from ..preview import NotAnImage
from ..units import format_shape
from .layout import clean
from .thumbnail import Pixels, half_blocks, letters, shrink

_DIM: Final = "dim"


class Newest:
    """Looks at one stream at a time; `close` it. Its consumers' ids go into `own`."""

    def __init__(self, context: Context, *, has_colours: bool, own: set[int] | None = None) -> None:
        self._context = context
        self._has_colours = has_colours
        self.own = set() if own is None else own
        self._consumer: Consumer | None = None
        self._pixels: Pixels | None = None
        self._words = ""

    def look(self, stream_id: int | None, columns: int, lines: int) -> Sequence[Text]:
        """The picture, at most so large, with a line of words below; nothing for no stream."""
        if self._consumer is not None and self._consumer.stream_id != stream_id:
            self.close()
        if stream_id is None or columns < 1 or lines < 2:
            self.close()
            return ()
        try:
            self._take(stream_id, columns, 2 * (lines - 1))
        except (NotAnImage, RegionRejected) as error:
            self._pixels, self._words = None, str(error)
        except TensorPoolError as error:
            self.close()
            self._words = str(error)
        drawn = [] if self._pixels is None else self._draw(self._pixels)
        words = Text(clean(self._words), style=_DIM, no_wrap=True)
        words.truncate(columns, overflow="ellipsis")
        return [*drawn, words]

    def _draw(self, pixels: Pixels) -> list[Text]:
        return half_blocks(pixels) if self._has_colours else letters(pixels)

    def _take(self, stream_id: int, columns: int, rows: int) -> None:
        if self._consumer is None:
            self._words = "no frame yet"
            self._consumer = self._context.consumer(stream_id, policy="latest")
        frame = self._consumer.latest()
        # It may take another id when somebody else has the same.
        if (number := self._consumer.standing()["consumer_id"]) is not None:
            self.own.add(number)
        if frame is None:
            return
        try:
            with frame:
                pixels = shrink(frame.array, columns, rows)
        except FrameOverwritten:
            # Torn while it was read: the one before is still a good picture.
            return
        self._pixels = pixels
        self._words = f"{frame.element_type} {format_shape(frame.shape)}"

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer, self._pixels, self._words = None, None, ""
