"""Partial frames of element types that metadata declares."""

from __future__ import annotations

import numpy as np
import pytest

import tensorpool as tp

from .conftest import EVERY_STEP, ProgressHarness
from .test_partial_frames import CollectParts


@pytest.mark.parametrize("name", ["float16", "complex64", "complex128"])
def test_partial_frame_has_the_declared_element_type(
    harness: ProgressHarness, context: tp.Context, collect_parts: CollectParts, name: str
) -> None:
    consumer = context.consumer(harness.stream_id, timeout=60, **EVERY_STEP)
    camera = harness.camera(dtype=name)
    harness.wait_granted(camera, consumer)
    assert consumer.wait_for_metadata(60) is not None
    seq = camera.call("claim", shape=[6, 5], dtype=name, progress="rows")
    camera.call("fill", seq=seq, first=0, last=4, shift=10)
    parts = collect_parts(consumer, lambda part: part.rows == 4)
    first, last = parts[0], parts[-1]
    assert (first.array.shape, first.array.dtype) == ((0, 5), np.dtype(name))
    assert (last.element_type, last.shape, last.rows) == (name, (6, 5), 4)
    with last:
        expected = np.repeat(np.arange(10, 14), 5).reshape(4, 5).astype(name)
        assert (last.array.dtype, last.array.flags.writeable) == (expected.dtype, False)
        np.testing.assert_array_equal(last.array, expected)
    camera.call("fill", seq=seq, first=4, last=6, shift=10)
    assert camera.call("commit", seq=seq) == "published"
    frame = next(consumer)
    assert (frame.dtype, frame.shape) == (np.dtype(name), (6, 5))
    np.testing.assert_array_equal(frame.array[:4], last.array)
