"""Received frames: read-only views, their lifetime, and overwritten frames."""

from __future__ import annotations

import gc
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests.integration.dataplane.region_files import regions_of

DEADLINE_S = 60.0


@pytest.fixture
def ring_of_two(connect):
    """A stream whose frames are overwritten by the second frame after them."""
    return connect(nslots=2)


def overwrite_all(stream) -> None:
    """Overwrites every frame of the ring."""
    for _ in range(2):
        stream.producer.offer(np.full(4, 99.0))


def drain(stream) -> None:
    """Receives and drops the frames that have arrived."""
    while stream.consumer.wait(0.0):
        stream.consumer.poll()


def mappings_of(directory: Path) -> list[tuple[str, str]]:
    """(permissions, file name) of every mapping of a file in the directory."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    pattern = re.compile(rf"\S+ (\S+) .* {re.escape(str(directory))}/(\S+)")
    return sorted((match[1], match[2]) for line in lines if (match := pattern.match(line)))


# --- memory


def test_consumer_maps_regions_read_only(mapped) -> None:
    hostile, _ = mapped
    assert mappings_of(hostile.directory) == [("r--s", "1.pool"), ("r--s", "2.pool"), ("r--s", "header.ring")]


def test_frame_array_is_the_shared_memory(stream) -> None:
    frame = stream.send(np.arange(4.0))
    again = frame.array
    assert np.shares_memory(frame.array, again)
    assert not frame.array.flags.owndata
    assert frame.array.ctypes.data % 64 == 0


def test_frame_array_is_read_only(stream) -> None:
    array = stream.send(np.arange(4.0)).array
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.setflags(write=True)


def test_frame_memoryview_is_read_only_and_shaped(stream) -> None:
    sent: Any = np.arange(6, dtype=np.int16).reshape(2, 3)
    view = memoryview(stream.send(sent))
    assert (view.readonly, view.shape, view.format, view.nbytes) == (True, (2, 3), "h", 12)
    assert view.tolist() == sent.tolist()
    with pytest.raises(TypeError, match="read-only"):
        view[0, 0] = 1


def test_writable_buffer_of_a_frame_is_refused(stream) -> None:
    frame = stream.send(np.arange(4, dtype=np.uint8))
    with pytest.raises((BufferError, TypeError)):
        io.BytesIO(b"1234").readinto(frame)
    assert frame.array.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", ["uint8", "int64", "uint64", "float32", "float64", "bool"])
def test_frame_buffer_has_the_same_elements(stream, dtype) -> None:
    sent = np.array([1, 0, 1], dtype=dtype)
    assert memoryview(stream.send(sent)).tolist() == sent.tolist()


def test_frame_with_gaps_has_no_contiguous_buffer(stream) -> None:
    sent = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    frame = stream.send(sent)
    assert memoryview(frame).tolist() == sent.tolist()
    assert bytes(frame) == sent.tobytes()
    # As plain bytes the elements would have another order than the caller expects.
    with pytest.raises((ValueError, BufferError), match="contiguous"):
        np.frombuffer(frame, np.uint8)


def test_dlpack_exports_read_only_memory(stream) -> None:
    sent = np.arange(6, dtype=np.int32).reshape(2, 3)
    frame = stream.send(sent)
    taken = np.from_dlpack(frame)
    assert taken.tolist() == sent.tolist()
    assert not taken.flags.writeable
    assert np.shares_memory(taken, frame.array)
    assert frame.__dlpack_device__() == (1, 0)


class LegacyExport:
    """Passes a frame on as a caller of the older protocol, which cannot say that memory is read-only."""

    def __init__(self, frame: tp.Frame, **arguments: Any) -> None:
        self._frame = frame
        self._arguments = arguments

    def __dlpack__(self, **_: Any) -> Any:
        return self._frame.__dlpack__(**self._arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._frame.__dlpack_device__()


@pytest.mark.parametrize("arguments", [{}, {"stream": None}, {"max_version": (0, 8)}, {"copy": True}])
def test_dlpack_copies_for_a_caller_that_cannot_take_read_only_memory(
    stream, arguments: dict[str, Any]
) -> None:
    sent = np.arange(6, dtype=np.int32).reshape(2, 3)
    frame = stream.send(sent)
    taken = np.from_dlpack(LegacyExport(frame, **arguments))
    assert taken.tolist() == sent.tolist()
    assert not np.shares_memory(taken, frame.array)


def test_dlpack_copies_where_asked(stream) -> None:
    frame = stream.send(np.arange(3))
    taken = np.from_dlpack(frame, copy=True)
    assert not np.shares_memory(taken, frame.array)
    assert np.shares_memory(np.from_dlpack(frame, copy=False), frame.array)


def test_dlpack_without_a_copy_is_refused_where_one_is_needed(stream) -> None:
    with pytest.raises(BufferError, match=r"leave copy=False out, or pass max_version=\(1, 0\)"):
        stream.send(np.zeros(3)).__dlpack__(copy=False)


def test_dlpack_copy_of_an_overwritten_frame_raises(stream) -> None:
    frame = stream.send(np.zeros(3))
    for _ in range(stream.producer.nslots):
        stream.producer.offer(np.ones(3))
    with pytest.raises(tp.FrameOverwritten):
        frame.__dlpack__()


JAX_SCRIPT = """
import sys
import jax.numpy as jnp, numpy as np
import tensorpool as tp

sent = np.arange(6, dtype=np.float32).reshape(2, 3)
with tp.open("standalone", aeron_dir=sys.argv[1], shm_base_dir=sys.argv[2]) as ctx:
    producer, consumer = ctx.producer(7, pools=["64KiB"]), ctx.consumer(7)
    assert consumer.wait_for_producer(60)
    producer.offer(sent)
    frame = consumer.receive(60)
    for taken in (jnp.from_dlpack(frame), jnp.from_dlpack(frame, copy=True)):
        assert taken.tolist() == sent.tolist()
"""


def test_jax_takes_frames(aeron_dir: Path, shm_base: Path) -> None:
    # In its own process: JAX keeps its threads until the process ends.
    subprocess.run([sys.executable, "-c", JAX_SCRIPT, str(aeron_dir), str(shm_base)], check=True)


def test_frame_is_a_table_in_notebooks(stream) -> None:
    html = stream.send(np.zeros((2, 3), np.float32))._repr_html_()
    assert "<tr><th>shape</th><td>(2, 3)</td></tr>" in html
    assert "<tr><th>state</th><td>valid</td></tr>" in html


def test_frame_has_a_readable_repr(stream) -> None:
    frame = stream.send(np.zeros((2, 3), np.float32))
    assert repr(frame) == (
        f"<Frame stream={stream.producer.stream_id} epoch={stream.producer.epoch} seq=0 "
        "shape=(2, 3) dtype=float32 valid>"
    )
    assert (frame.stream_id, frame.epoch) == (stream.producer.stream_id, stream.producer.epoch)


def test_slot_repr_names_frame_and_state(stream) -> None:
    producer = stream.producer
    key = f"stream={producer.stream_id} epoch={producer.epoch} seq=0 shape=(2, 3) dtype=float32"
    abandoned = producer.claim((2, 3), "float32", progress="rows")
    abandoned.advance()
    assert repr(abandoned) == f"<Slot {key} open filled=1>"
    abandoned.abandon()
    assert repr(abandoned) == f"<Slot {key} abandoned>"
    slot = producer.claim((2, 3), "float32")
    assert repr(slot).endswith(" open>")
    result = slot.commit()
    assert repr(slot).endswith(f" {result.outcome}>")
    assert repr(result) == f"<OfferResult {result.outcome} seq={result.seq}>"


# --- life


def test_view_outlives_its_consumer(stream) -> None:
    directory = regions_of(stream.producer).directory
    array = stream.send(np.arange(1000.0)).array
    stream.consumer.close()
    stream.producer.close()
    gc.collect()
    assert not directory.exists()
    assert ("r--s", "1.pool") in mappings_of(directory) or "(deleted)" in Path("/proc/self/maps").read_text()
    assert array.sum() == 499_500.0
    del array
    gc.collect()
    assert str(directory) not in Path("/proc/self/maps").read_text()


def test_view_outlives_its_context(connect, context) -> None:
    stream = connect()
    view = memoryview(stream.send(np.arange(10, dtype=np.uint8)))
    stream.consumer.close()
    context.close()
    assert bytes(view) == bytes(range(10))
    view.release()


def test_view_outlives_its_epoch(mapped, hostile, numbers) -> None:
    producer, consumer = mapped
    producer.publish(0)
    frame = consumer.receive(DEADLINE_S)
    array = frame.array
    successor = hostile(epoch=producer.epoch + 1)
    successor.announce_until(lambda: consumer.epoch == successor.epoch)
    assert mappings_of(producer.directory) != []
    np.testing.assert_array_equal(array, numbers)
    assert frame.valid()
    del frame, array
    gc.collect()
    assert mappings_of(producer.directory) == []


# --- loss


def test_frame_is_valid_until_its_slot_is_reused(ring_of_two) -> None:
    stream = ring_of_two
    frame = stream.send(np.zeros(4))
    assert frame.valid()
    stream.producer.offer(np.ones(4))
    assert frame.valid()
    stream.producer.offer(np.ones(4))
    assert not frame.valid()


def test_frame_copy_is_independent_memory(stream) -> None:
    frame = stream.send(np.arange(6).reshape(2, 3))
    copy = frame.copy()
    copy[0, 0] = 5
    assert (copy.tolist(), frame.array.tolist()) == ([[5, 1, 2], [3, 4, 5]], [[0, 1, 2], [3, 4, 5]])
    assert copy.flags.writeable
    assert not np.shares_memory(copy, frame.array)


def test_frame_copy_keeps_the_memory_order(stream) -> None:
    assert stream.send(np.zeros((2, 3), order="F")).copy().flags.f_contiguous


@pytest.mark.requirement("wire-8.3-4")
def test_copy_of_an_overwritten_frame_raises(ring_of_two) -> None:
    stream = ring_of_two
    frame = stream.send(np.zeros(4))
    overwrite_all(stream)
    with pytest.raises(tp.FrameOverwritten, match="more slots") as lost:
        frame.copy()
    assert (lost.value.stream_id, lost.value.epoch, lost.value.seq) == (frame.stream_id, frame.epoch, 0)


@pytest.mark.requirement("wire-8.3-4")
def test_frame_block_raises_if_the_frame_was_overwritten(ring_of_two) -> None:
    stream = ring_of_two
    frame = stream.send(np.zeros(4))
    with frame:
        assert frame.array.sum() == 0
    with pytest.raises(tp.FrameOverwritten), frame:
        overwrite_all(stream)


def test_error_inside_a_frame_block_is_not_replaced(ring_of_two) -> None:
    stream = ring_of_two
    frame = stream.send(np.zeros(4))

    def fail() -> None:
        overwrite_all(stream)
        raise KeyError

    with pytest.raises(KeyError), frame:
        fail()
    assert stream.consumer.ledger().dropped["late"] == 1


@pytest.mark.parametrize("check", ["valid", "copy", "with"])
def test_frame_found_overwritten_is_counted_as_late_once(ring_of_two, check) -> None:
    stream = ring_of_two
    frame = stream.send(np.zeros(4))
    overwrite_all(stream)
    drain(stream)
    before = stream.consumer.ledger()
    for _ in range(3):
        try:
            if check == "valid":
                frame.valid()
            elif check == "copy":
                frame.copy()
            else:
                with frame:
                    pass
        except tp.FrameOverwritten:
            pass
    after = stream.consumer.ledger()
    assert after.received == before.received - 1
    assert after.dropped["late"] == before.dropped["late"] + 1
    assert (after.span, after.balanced) == (before.span, True)


def test_frame_without_a_check_stays_received(ring_of_two) -> None:
    stream = ring_of_two
    frame = stream.send(np.zeros(4))
    overwrite_all(stream)
    drain(stream)
    before = stream.consumer.ledger().received
    frame.array.sum()
    del frame
    assert stream.consumer.ledger().received == before
    assert stream.consumer.ledger().balanced
