"""A frame as a few characters: two pixels each, one above the other; without colours a ramp of letters.

Only the pixels that are shown are read: a frame of a hundred megabytes costs no more than a small one.

The newest frame of the stream whose details are shown: a consumer that looks now and then.

It is one of those that skip: it holds nobody up, and takes no lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich.color import Color
from rich.style import Style
from rich.text import Text

from ..client import Consumer
from ..context import Context
from ..errors import FrameOverwritten, RegionRejected, TensorPoolError
from ..preview import NotAnImage, image_view, to_real
from ..units import format_shape
from .tables import clean

_RAMP: Final = " .:-=+*#%@"
_OVERSAMPLING: Final = 2
Pixels = npt.NDArray[np.uint8]


def shrink(array: npt.NDArray[Any], width: int, height: int) -> Pixels:
    """(rows, columns, 3) that fit `width` x `height` square pixels. Raises NoPicture.

    uint8 stays as it is; everything else is stretched from its least to its greatest value, of what is shown.
    """
    picture = image_view(array)
    rows, columns = picture.shape[:2]
    scale = min(width / columns, height / rows)
    # A thin picture is widened to a line: it is there, and should be seen.
    out_columns = max(1, min(width, round(columns * scale)))
    out_rows = max(1, min(height, round(rows * scale)))
    points = _OVERSAMPLING if min(columns // out_columns, rows // out_rows) >= _OVERSAMPLING else 1
    at_rows = _places(rows, out_rows * points)
    at_columns = _places(columns, out_columns * points)
    sampled = picture[at_rows[:, None], at_columns[None, :]]
    values = sampled.astype(np.float64) if sampled.dtype == np.uint8 else _stretched(sampled)
    channels = values.reshape(out_rows, points, out_columns, points, -1).mean(axis=(1, 3))
    # Gray, gray with alpha, or colours with or without it.
    chosen = channels[..., :1].repeat(3, axis=2) if channels.shape[2] < 3 else channels[..., :3]
    pixels: Pixels = np.round(chosen).astype(np.uint8)
    return pixels


def _places(size: int, count: int) -> npt.NDArray[np.intp]:
    return ((np.arange(count) + 0.5) * size / count).astype(np.intp)


def _stretched(sampled: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    values = to_real(sampled).astype(np.float64)
    finite = np.isfinite(values)
    low = float(values[finite].min()) if finite.any() else 0.0
    high = float(values[finite].max()) if finite.any() else 0.0
    if not high > low:
        return np.zeros(values.shape)
    clean = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    # Halved first: the distance between the ends of float64 is no float64.
    return (clean / 2 - low / 2) / (high / 2 - low / 2) * 255


def half_blocks(pixels: Pixels) -> list[Text]:
    """Each character has the colours of two pixels; needs a terminal with 256 of them or more."""
    rows, columns = pixels.shape[:2]
    lines = []
    for top in range(0, rows, 2):
        line = Text(no_wrap=True)
        for column in range(columns):
            above = Color.from_rgb(*(int(one) for one in pixels[top, column]))
            if top + 1 < rows:
                below = Color.from_rgb(*(int(one) for one in pixels[top + 1, column]))
                line.append("▀", Style(color=above, bgcolor=below))
            else:
                line.append("▀", Style(color=above))
        lines.append(line)
    return lines


def letters(pixels: Pixels) -> list[Text]:
    """For terminals without colours: the brighter, the more ink."""
    rows = pixels.shape[0] // 2 * 2 or 1
    # A character is twice as high as it is wide.
    gray = pixels[:rows].mean(axis=2)
    gray = gray.reshape(-1, 2, gray.shape[1]).mean(axis=1) if rows > 1 else gray
    places = np.minimum((gray / 256 * len(_RAMP)).astype(int), len(_RAMP) - 1)
    return [Text("".join(_RAMP[one] for one in line), no_wrap=True) for line in places]


_DIM: Final = "dim"


class FramePreview:
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
