"""The preview of a stream's newest frame: an image of a few characters.

A character shows two pixels, one above the other; without colours it is a letter of a ramp. Only the pixels
that are shown are read: a frame of a hundred megabytes costs no more than a small one.

`FramePreview` reads with the policy `latest`: its consumer slows no producer down and takes no lease.
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
from ..preview import NotAnImage, image_view, stretch
from ..text import safe_text
from ..units import format_shape
from .tables import DIM

_RAMP: Final = " .:-=+*#%@"
_OVERSAMPLING: Final = 2
Pixels = npt.NDArray[np.uint8]


def shrink(array: npt.NDArray[Any], width: int, height: int) -> Pixels:
    """(rows, columns, 3) that fit `width` x `height` square pixels. Raises NotAnImage.

    uint8 stays as it is. Other elements are stretched from the least to the greatest value shown.
    """
    image = image_view(array)
    rows, columns = image.shape[:2]
    scale = min(width / columns, height / rows)
    # A very thin image gets at least one row or column: otherwise it would be invisible.
    out_columns = max(1, min(width, round(columns * scale)))
    out_rows = max(1, min(height, round(rows * scale)))
    points = _OVERSAMPLING if min(columns // out_columns, rows // out_rows) >= _OVERSAMPLING else 1
    row_indices = _sample_indices(rows, out_rows * points)
    column_indices = _sample_indices(columns, out_columns * points)
    sampled = image[row_indices[:, None], column_indices[None, :]]
    values = sampled.astype(np.float64) if sampled.dtype == np.uint8 else stretch(sampled)
    channels = values.reshape(out_rows, points, out_columns, points, -1).mean(axis=(1, 3))
    # One or two channels are gray, without or with alpha; three or four are RGB.
    rgb = channels[..., :1].repeat(3, axis=2) if channels.shape[2] < 3 else channels[..., :3]
    pixels: Pixels = np.round(rgb).astype(np.uint8)
    return pixels


def _sample_indices(size: int, count: int) -> npt.NDArray[np.intp]:
    return ((np.arange(count) + 0.5) * size / count).astype(np.intp)


def half_blocks(pixels: Pixels) -> list[Text]:
    """Lines whose characters have the colours of two pixels each; for terminals with 256 colours or more."""
    rows, columns = pixels.shape[:2]
    lines = []
    for top in range(0, rows, 2):
        line = Text(no_wrap=True)
        for column in range(columns):
            upper = Color.from_rgb(*map(int, pixels[top, column]))
            if top + 1 < rows:
                lower = Color.from_rgb(*map(int, pixels[top + 1, column]))
                line.append("▀", Style(color=upper, bgcolor=lower))
            else:
                line.append("▀", Style(color=upper))
        lines.append(line)
    return lines


def letters(pixels: Pixels) -> list[Text]:
    """Lines for terminals without colours: the brighter a pixel, the denser its letter."""
    rows = pixels.shape[0] // 2 * 2 or 1
    # A character is twice as high as it is wide.
    gray = pixels[:rows].mean(axis=2)
    gray = gray.reshape(-1, 2, gray.shape[1]).mean(axis=1) if rows > 1 else gray
    levels = np.minimum((gray / 256 * len(_RAMP)).astype(int), len(_RAMP) - 1)
    return [Text("".join(_RAMP[level] for level in line), no_wrap=True) for line in levels]


class FramePreview:
    """A consumer of one stream at a time, and its newest frame; `close` it.

    The ids of its consumers are added to `consumer_ids`, so that top can hide them.
    """

    def __init__(self, context: Context, *, has_colours: bool, consumer_ids: set[int] | None = None) -> None:
        self._context = context
        self._has_colours = has_colours
        self.consumer_ids = set() if consumer_ids is None else consumer_ids
        self._consumer: Consumer | None = None
        self._pixels: Pixels | None = None
        self._caption = ""

    def lines(self, stream_id: int | None, columns: int, lines: int) -> Sequence[Text]:
        """The image of the newest frame, at most so large, and a caption; nothing without a stream."""
        if self._consumer is not None and self._consumer.stream_id != stream_id:
            self.close()
        if stream_id is None or columns < 1 or lines < 2:
            self.close()
            return ()
        try:
            self._update(stream_id, columns, 2 * (lines - 1))
        except (NotAnImage, RegionRejected) as error:
            self._pixels, self._caption = None, str(error)
        except TensorPoolError as error:
            self.close()
            self._caption = str(error)
        image = [] if self._pixels is None else self._draw(self._pixels)
        caption = Text(safe_text(self._caption), style=DIM, no_wrap=True)
        caption.truncate(columns, overflow="ellipsis")
        return [*image, caption]

    def _draw(self, pixels: Pixels) -> list[Text]:
        return half_blocks(pixels) if self._has_colours else letters(pixels)

    def _update(self, stream_id: int, columns: int, rows: int) -> None:
        if self._consumer is None:
            self._caption = "no frame yet"
            self._consumer = self._context.consumer(stream_id, policy="latest")
        frame = self._consumer.latest()
        # A consumer changes its id if another consumer uses the same one.
        if (consumer_id := self._consumer.state().consumer_id) is not None:
            self.consumer_ids.add(consumer_id)
        if frame is None:
            return
        try:
            with frame:
                pixels = shrink(frame.array, columns, rows)
        except FrameOverwritten:
            # The frame was overwritten while it was read: the previous image stays.
            return
        self._pixels = pixels
        self._caption = f"{frame.element_type} {format_shape(frame.shape)}"

    def close(self) -> None:
        """Closes the consumer and forgets its image."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer, self._pixels, self._caption = None, None, ""
