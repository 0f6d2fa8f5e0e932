"""Frames on a device: registration by epoch, the order of copy, proof and hand-out, fallbacks and limits.

The device is a stand-in whose copies run when something waits for them, so that a frame can be overwritten
while it is copied. `make test-gpu` runs the same paths on a real one.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.cuda import Device, DeviceFrame, SlotWriter, commit_after, parse_device, stream_address
from tensorpool.errors import ConfigError, DeviceError, MissingPackage
from tests.integration.dataplane.conftest import DEADLINE_S, Stream
from tests.stand_in_cuda import DeviceTensor, DlpackTensor, StandInCuda


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> StandInCuda:
    """The device that `device="cuda:0"` opens in this test."""
    api = StandInCuda()
    for module in ("client.consumer", "client.producer"):
        monkeypatch.setattr(f"tensorpool.{module}.open_api", lambda ordinal: api)
    monkeypatch.setattr("tensorpool.client.producer.writer_for", lambda tensor: SlotWriter(api))
    return api


@pytest.fixture
def stream(connect, api: StandInCuda) -> Stream:
    """A stream of two slots whose consumer copies to the device."""
    stream: Stream = connect(nslots=2, consumer={"device": "cuda:0", "timeout": DEADLINE_S})
    return stream


def receive(stream: Stream, array: np.ndarray) -> DeviceFrame:
    return stream.send(array).to_device()


def device_of(stream: Stream) -> Device:
    assert stream.consumer.device is not None
    return stream.consumer.device


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.uint16).reshape(3, 4),
        np.arange(6, dtype=np.float64),
        np.asfortranarray(np.arange(12, dtype=np.int32).reshape(3, 4)),
        np.array([True, False]),
        np.empty((0, 4), np.uint8),
        np.array(7, np.int64),
    ],
    ids=["uint16", "float64", "column-major", "bool", "empty", "scalar"],
)
def test_a_frame_arrives_whole_with_its_facts(stream: Stream, api: StandInCuda, array: np.ndarray) -> None:
    copied = receive(stream, array)
    assert copied.valid()
    assert copied.done()
    assert np.array_equal(copied.copy_to_host(), array.reshape(copied.shape))
    assert (copied.dtype, copied.seq, copied.device) == (array.dtype, 0, "cuda:0")
    assert "whole" in repr(copied)
    assert "staged copy" not in [entry for entry in api.log if "copy" in entry][:1]


def test_complex_frames_and_padded_rows_keep_their_layout(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=4, consumer={"device": "cuda"}, metadata={})
    values = (np.arange(6) + 1j).astype(np.complex64).reshape(2, 3)
    assert np.array_equal(receive(stream, values).copy_to_host(), values)
    padded = np.arange(40, dtype=np.uint8).reshape(4, 10)[:, :7]
    copied = stream.send(padded, keep_strides=True).to_device()
    assert copied.array.strides == (10, 1)
    assert np.array_equal(copied.copy_to_host(), padded)


def test_a_frame_overwritten_during_its_copy_is_never_handed_out(stream: Stream, api: StandInCuda) -> None:
    api.is_held = True
    frame = stream.send(np.full(4, 1.0))
    copied = frame.to_device()
    assert not copied.done()
    for value in (2.0, 3.0):
        stream.producer.offer(np.full(4, value))
    assert not copied.valid()
    for use in (lambda: copied.array, copied.__dlpack__, lambda: copied.__cuda_array_interface__):
        with pytest.raises(tp.FrameOverwritten, match="while it was copied to the device"):
            use()
    ledger = stream.consumer.ledger()
    assert ledger.dropped["late"] == 1
    assert ledger.balanced


def test_the_iteration_skips_what_was_overwritten_and_copies_ahead(stream: Stream, api: StandInCuda) -> None:
    api.is_held = True
    frames = stream.consumer.on_device(depth=2)
    stream.producer.offer(np.full(4, 0.0))
    stream.producer.offer(np.full(4, 1.0))
    first = next(frames)
    assert (first.seq, float(first.copy_to_host()[0])) == (0, 0.0)
    # The copy of the second frame is under way: it is overwritten now, and the third is the next.
    stream.producer.offer(np.full(4, 2.0))
    stream.producer.offer(np.full(4, 3.0))
    later = next(frames)
    assert later.seq in (2, 3)
    assert float(later.copy_to_host()[0]) == later.seq
    assert stream.consumer.ledger().balanced


def test_pools_are_registered_once_an_epoch_and_again_after_a_remap(
    stream: Stream, api: StandInCuda, context: tp.Context
) -> None:
    for _ in range(3):
        assert receive(stream, np.zeros(4)).valid()
    assert api.log.count("register") == len(api.registered) > 0
    assert all(read_only for _, read_only in api.registered.values())
    before = set(api.registered)
    first_epoch = stream.consumer.epoch
    stream.producer.close()
    producer = context.producer(stream.consumer.stream_id, pools=["4KiB"], nslots=2)
    frame = None
    for value in range(1000):
        producer.offer(np.full(4, float(value)))
        if (frame := stream.consumer.receive_or_none(0.2)) is not None:
            break
    assert frame is not None
    assert frame.epoch != first_epoch
    copied = frame.to_device()
    assert copied.valid()
    assert device_of(stream).registered_epochs == (frame.epoch,)
    assert api.log.count("unregister") == len(before)
    producer.close()


def test_copies_under_way_end_before_their_memory_is_unregistered(stream: Stream, api: StandInCuda) -> None:
    """The stand-in refuses a direct copy out of memory that is no longer registered."""
    api.is_held = True
    copied = receive(stream, np.full(4, 5.0))
    assert not copied.done()
    stream.consumer.close()
    assert not api.registered
    assert copied.valid()


def test_memory_of_an_ended_epoch_is_unregistered_while_the_iteration_waits(
    stream: Stream, api: StandInCuda
) -> None:
    frames = stream.consumer.on_device()
    stream.producer.offer(np.zeros(4))
    assert next(frames).valid()
    assert api.registered
    device_of(stream).unregister_ended(None)
    assert not api.registered


def test_what_cannot_be_registered_is_reported_once_and_copied_anyway(
    stream: Stream, api: StandInCuda, caplog: pytest.LogCaptureFixture
) -> None:
    api.refuses_registration = "cudaErrorMemoryAllocation"
    with caplog.at_level(logging.WARNING):
        for value in range(3):
            assert float(receive(stream, np.full(4, float(value))).copy_to_host()[0]) == value
    (record,) = [r for r in caplog.records if "could not be registered" in r.message]
    assert "ulimit -l unlimited" in record.message
    assert "direct copy" not in api.log
    assert device_of(stream).registered_epochs == ()


def test_a_half_registered_epoch_is_undone(
    connect, api: StandInCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream: Stream = connect(nslots=2, pools=["4KiB", "64KiB"], consumer={"device": "cuda:0"})
    register, calls = api.register, []

    def refuse_the_second(address: int, nbytes: int, *, read_only: bool) -> None:
        calls.append(address)
        if len(calls) == 2:
            raise DeviceError("no", code="cudaErrorMemoryAllocation")
        register(address, nbytes, read_only=read_only)

    monkeypatch.setattr(api, "register", refuse_the_second)
    assert receive(stream, np.zeros(4)).valid()
    assert not api.registered


def test_buffers_are_used_again_after_their_readers(stream: Stream, api: StandInCuda) -> None:
    reader = api.create_stream()
    frame = receive(stream, np.full(4, 1.0))
    capsule = frame.__dlpack__(stream=reader, max_version=(1, 0))
    address = frame.array.address
    del frame
    second = receive(stream, np.full(4, 2.0))
    assert second.array.address != address, "the capsule still holds the first"
    api.log.clear()
    del capsule
    again = receive(stream, np.full(4, 3.0))
    assert again.array.address == address
    assert api.log.count("wait_for_event") == 1
    assert "synchronize_device" not in api.log


def test_a_reader_of_an_unknown_stream_costs_a_wait_for_the_device(stream: Stream, api: StandInCuda) -> None:
    frame = receive(stream, np.full(4, 1.0))
    assert frame.__cuda_array_interface__["shape"] == (4,)
    del frame
    api.log.clear()
    receive(stream, np.full(4, 2.0))
    assert "synchronize_device" in api.log
    frame = stream.send(np.full(4, 3.0)).to_device(stream=api.create_stream())
    assert frame.__cuda_array_interface__["data"][1] is False
    del frame
    api.log.clear()
    receive(stream, np.full(4, 4.0))
    assert "synchronize_device" not in api.log


def test_buffers_are_freed_when_the_consumer_is_closed(stream: Stream, api: StandInCuda) -> None:
    kept = receive(stream, np.full(4, 1.0))
    del kept
    kept = receive(stream, np.full(4, 2.0))
    frame = stream.send(np.full(4, 3.0))
    stream.consumer.close()
    assert len(api.memory) == 1
    assert float(np.frombuffer(next(iter(api.memory.values())), np.float64)[0]) == 2.0
    del kept
    assert not api.memory
    with pytest.raises(tp.ClosedError):
        frame.to_device()


def test_dlpack_capsules_have_the_layout_of_the_frame(stream: Stream) -> None:
    values = np.arange(12, dtype=np.uint16).reshape(3, 4)
    copied = receive(stream, values)
    for max_version in (None, (1, 0)):
        tensor = _native.DlpackTensor(copied.__dlpack__(stream=1, max_version=max_version))
        assert (tensor.shape, tensor.strides, tensor.code, tensor.bits) == ([3, 4], [4, 1], 1, 16)
        assert (tensor.device_type, tensor.device_id) == copied.__dlpack_device__() == (2, 0)
        assert tensor.address == copied.array.address
    copy = _native.DlpackTensor(copied.__dlpack__(stream=1, copy=True))
    assert copy.address != copied.array.address
    on_host = _native.DlpackTensor(copied.__dlpack__(dl_device=(1, 0)))
    assert on_host.device_type == 1
    with pytest.raises(BufferError, match="only a copy"):
        copied.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="not on"):
        copied.__dlpack__(dl_device=(2, 3))
    with pytest.raises(TypeError, match="not a capsule"):
        _native.DlpackTensor(values)


def test_an_epoch_changes_while_a_copy_of_the_old_one_is_under_way(
    stream: Stream, api: StandInCuda, context: tp.Context
) -> None:
    """The stand-in refuses a direct copy out of memory that is no longer registered."""
    api.is_held = True
    old = receive(stream, np.full(4, 1.0))
    stream.producer.close()
    with context.producer(stream.consumer.stream_id, pools=["4KiB"], nslots=2) as producer:
        frame = None
        for value in range(1000):
            producer.offer(np.full(4, float(value)))
            if (frame := stream.consumer.receive_or_none(0.2)) is not None:
                break
        assert frame is not None
        assert frame.epoch != old.epoch
        assert not old.done()
        new = frame.to_device()
        assert old.done()
        assert float(old.copy_to_host()[0]) == 1.0
        assert float(new.copy_to_host()[0]) == float(frame.copy()[0])
        assert device_of(stream).registered_epochs == (new.epoch,)


def test_memory_stays_registered_until_its_copies_have_ended(
    stream: Stream, api: StandInCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be unmapped, and what is mapped there next would be taken for it."""
    assert receive(stream, np.zeros(4)).valid()
    device = device_of(stream)
    before = dict(api.registered)

    def interrupt(_stream: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(api, "synchronize_stream", interrupt)
        with pytest.raises(KeyboardInterrupt):
            stream.consumer.close()
        assert api.registered == before
        assert device.registered_epochs
    stream.consumer.close()
    assert not api.registered
    assert device.registered_epochs == ()


def test_every_pool_is_unregistered_even_if_one_is_refused(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=2, pools=["4KiB", "64KiB"], consumer={"device": "cuda:0"})
    assert receive(stream, np.zeros(4)).valid()
    assert len(api.registered) == 2
    api.registered.pop(max(api.registered))
    stream.consumer.close()
    assert not api.registered


def test_a_kept_frame_can_be_read_after_its_consumer_was_closed(stream: Stream, api: StandInCuda) -> None:
    kept = receive(stream, np.full(4, 5.0))
    array = kept.array
    stream.consumer.close()
    assert float(kept.copy_to_host()[0]) == 5.0
    on_host = _native.DlpackTensor(array.__dlpack__(dl_device=(1, 0)))
    assert (on_host.device_type, on_host.shape) == (1, [4])
    with pytest.raises(tp.ClosedError):
        array.__dlpack__(copy=True)
    del kept, array
    assert not api.memory


def test_a_copy_follows_the_work_of_the_readers(stream: Stream, api: StandInCuda) -> None:
    """The array is writable: a kernel that was started before the copy may write it."""
    frame = receive(stream, np.full(4, 1.0))
    assert frame.valid()
    api.is_held = True
    kernel = api.create_stream()
    capsule = frame.__dlpack__(stream=kernel, max_version=(1, 0))
    api.copy_on_device(frame.array.address, DeviceTensor(api, np.full(4, 9.0)).address, 32, kernel)
    copy = _native.DlpackTensor(frame.__dlpack__(stream=1, copy=True))
    assert float(np.frombuffer(api.memory[copy.address], np.float64)[0]) == 9.0
    api.copy_on_device(frame.array.address, DeviceTensor(api, np.full(4, 8.0)).address, 32, kernel)
    assert float(frame.copy_to_host()[0]) == 8.0
    # A reader that names its stream with this request only.
    other = api.create_stream()
    api.copy_on_device(frame.array.address, DeviceTensor(api, np.full(4, 7.0)).address, 32, other)
    frame.__dlpack__(stream=other, dl_device=(1, 0))
    assert not api.streams[other]
    del capsule


def test_a_caller_of_dlpack_without_a_stream_costs_a_wait(stream: Stream, api: StandInCuda) -> None:
    frame = stream.send(np.full(4, 1.0))
    capsule = frame.__dlpack__(dl_device=(2, 0), stream=-1, max_version=(1, 0))
    assert _native.DlpackTensor(capsule).device_type == 2
    del capsule, frame
    gc.collect()
    api.log.clear()
    assert receive(stream, np.full(4, 2.0)).valid()
    assert "synchronize_device" in api.log
    assert "wait_for_event" not in api.log


def test_the_stream_of_a_reader_lives_until_the_buffer_is_used_again(
    stream: Stream, api: StandInCuda
) -> None:
    class Kernels:
        ptr = api.create_stream()

        def __del__(self) -> None:
            api.destroy_stream(self.ptr)

    kernels = Kernels()
    assert stream.send(np.full(4, 1.0)).to_device(stream=kernels).valid()
    del kernels
    gc.collect()
    api.log.clear()
    assert receive(stream, np.full(4, 2.0)).valid()
    assert "wait_for_event" in api.log
    assert "synchronize_device" not in api.log


def test_buffers_of_larger_frames_take_the_place_of_smaller_ones(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=16, consumer={"device": "cuda:0"})
    small = [receive(stream, np.zeros(4)) for _ in range(6)]
    del small
    for _ in range(4):
        assert receive(stream, np.zeros(1000)).valid()
    allocated = set(api.memory)
    for _ in range(4):
        assert receive(stream, np.zeros(1000)).valid()
    assert set(api.memory) == allocated
    assert len(allocated) == 4


def test_a_frame_that_ends_on_another_thread_during_the_close_is_freed(
    stream: Stream, api: StandInCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [receive(stream, np.zeros(4))]
    destroy = api.destroy_stream

    def destroy_late(address: int) -> None:
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()
        destroy(address)

    monkeypatch.setattr(api, "destroy_stream", destroy_late)
    stream.consumer.close()
    assert not api.memory
    assert not api.events


def test_a_failed_copy_of_an_array_returns_its_buffer(
    stream: Stream, api: StandInCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = receive(stream, np.zeros(4))

    def fail(*args: object) -> None:
        raise DeviceError("lost", code="cudaErrorLaunchFailure")

    monkeypatch.setattr(api, "copy_on_device", fail)
    with pytest.raises(DeviceError, match="lost"):
        frame.__dlpack__(copy=True)
    del frame
    stream.consumer.close()
    assert not api.memory


def test_the_iteration_ends_when_the_consumer_is_closed_before_a_copy(
    stream: Stream, api: StandInCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive_or_none = stream.consumer.receive_or_none

    def receive_and_close(timeout: float | None = None) -> tp.Frame | None:
        frame = receive_or_none(timeout)
        stream.consumer.close()
        return frame

    monkeypatch.setattr(stream.consumer, "receive_or_none", receive_and_close, raising=False)
    stream.producer.offer(np.zeros(4))
    assert list(stream.consumer.on_device()) == []


def test_a_forked_child_neither_waits_for_a_device_nor_uses_it(
    connect, api: StandInCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream: Stream = connect(nslots=2, consumer={"device": "cuda:0"})
    frame = receive(stream, np.zeros(4))
    array, device, writer = frame.array, device_of(stream), SlotWriter(api)
    entered, goes_on = threading.Semaphore(0), threading.Event()

    def wait(*args: int) -> None:
        entered.release()
        goes_on.wait(DEADLINE_S)

    # Threads of the parent, which do not exist in the child, hold the locks of both.
    with monkeypatch.context() as patch:
        patch.setattr(api, "synchronize_device", wait)
        patch.setattr(api, "synchronize_stream", wait)
        parents = [threading.Thread(target=target) for target in (writer.finish, frame.copy_to_host)]
        for thread in parents:
            thread.start()
            assert entered.acquire(timeout=DEADLINE_S)
        patch.setattr(os, "getpid", lambda: 1)

        def end() -> None:
            writer.finish()
            writer.close()
            device.close()

        child = threading.Thread(target=end)
        child.start()
        child.join(DEADLINE_S)
        is_stuck = child.is_alive()
        with pytest.raises(tp.ForkedError, match="spawn"):
            array.__dlpack__(dl_device=(1, 0))
        with pytest.raises(tp.ForkedError, match="spawn"):
            frame.copy_to_host()
        goes_on.set()
        for thread in parents:
            thread.join(DEADLINE_S)
    assert not is_stuck
    assert api.registered
    writer.close()


def test_sixteen_bit_floats_of_ml_dtypes_have_their_code(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=4, consumer={"device": "cuda:0"}, metadata={})
    for dtype, code in ((ml_dtypes.bfloat16, 4), (np.float16, 2)):
        values = np.arange(6).astype(dtype).reshape(2, 3)
        copied = receive(stream, values)
        tensor = _native.DlpackTensor(copied.__dlpack__(stream=1, max_version=(1, 0)))
        assert (tensor.code, tensor.bits, tensor.shape) == (code, 16, [2, 3])
        assert np.array_equal(copied.copy_to_host(), values)


# --- producers


def test_a_tensor_of_the_device_is_offered(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=4)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    result = stream.producer.offer(DeviceTensor(api, values), timestamp_ns=5)
    assert result
    frame = stream.consumer.receive(DEADLINE_S)
    assert frame.timestamp_ns == 5
    assert np.array_equal(frame.copy(), values)
    assert "direct copy" in api.log
    assert not any(read_only for _, read_only in api.registered.values())
    padded = DeviceTensor(api, values, pitch=64)
    assert np.array_equal(stream.send(padded).copy(), values)
    stream.producer.close()
    assert not api.registered


def test_padding_between_rows_of_the_device_is_refused_where_it_is_to_be_kept(
    connect, api: StandInCuda
) -> None:
    stream: Stream = connect(nslots=4)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    padded = DeviceTensor(api, values, pitch=64)
    with pytest.raises(
        ConfigError, match=r"keep_strides .* strides \(64, 4\) bytes on cuda:0: rows are packed"
    ):
        stream.producer.offer(padded, keep_strides=True)
    assert stream.producer.next_seq == 0
    assert np.array_equal(stream.send(padded).copy(), values)
    # There is no padding to keep.
    assert np.array_equal(stream.send(DeviceTensor(api, values), keep_strides=True).copy(), values)


def test_an_offer_that_fits_no_pool_is_counted_as_such(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=4, pools=["4KiB"])
    tensor = DeviceTensor(api, np.zeros((16, 1024), np.float32))
    with pytest.warns(tp.OfferWarning, match="65536 bytes fits no pool"):
        result = stream.producer.offer(tensor)
    assert (bool(result), result.outcome, result.seq) == (False, "no_pool", None)
    assert stream.producer.ledger().dropped["no_pool"] == 1
    with pytest.raises(tp.OfferRefused, match="65536 bytes fits no pool"):
        stream.producer.offer(tensor, strict=True)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        (np.arange(6, dtype=np.uint16).reshape(2, 3), 1),
        (np.arange(6).astype(np.float16), 2),
        (np.arange(6).astype(ml_dtypes.bfloat16), 4),
        ((np.arange(6) + 1j).astype(np.complex64), 5),
        (np.array([True, False]), 6),
        (np.empty((3, 0, 2), np.float32), 2),
    ],
    ids=["uint16", "float16", "bfloat16", "complex64", "bool", "empty"],
)
def test_element_types_of_dlpack_are_offered(
    connect, api: StandInCuda, values: np.ndarray, code: int
) -> None:
    stream: Stream = connect(nslots=4, metadata={})
    received = stream.send(DlpackTensor(api, values, code=code)).copy()
    assert (received.dtype, received.shape) == (values.dtype, values.shape)
    assert np.array_equal(received, values)


def test_a_single_number_of_the_device_is_offered(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=4)
    assert stream.send(DeviceTensor(api, np.array(7.0))).copy().tolist() in (7.0, [7.0])


def test_the_element_type_of_an_offer_is_named_in_any_way(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=4)
    tensor = DlpackTensor(api, np.arange(4, dtype=np.float32), code=2)
    same: list[Any] = ["float32", "<f4", np.float32, np.dtype("float32")]
    for dtype in same:
        assert stream.send(tensor, dtype=dtype).dtype == np.float32
    others: list[Any] = ["uint32", np.float64, "bytes"]
    for dtype in others:
        with pytest.raises(TypeError, match="the data is float32, not"):
            stream.producer.offer(tensor, dtype=dtype)
    image = DlpackTensor(api, np.arange(4, dtype=np.uint8), code=1)
    assert stream.send(image, dtype="bytes").element_type == "bytes"


def test_a_result_carries_the_trace_of_its_frame_on_the_device(
    connect, context: tp.Context, api: StandInCuda
) -> None:
    stream: Stream = connect(nslots=4, traces=True, consumer={"device": "cuda:0"})
    frame = receive(stream, np.zeros(4))
    assert frame.trace_id
    results: Stream = connect(nslots=4, traces=True)
    result = results.send(DeviceTensor(api, np.ones(4)), parents=[frame], timestamp_ns=frame.timestamp_ns)
    assert (result.trace_id, result.timestamp_ns) == (frame.trace_id, frame.timestamp_ns)


def test_a_frame_on_the_device_is_offered_again(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=4, consumer={"device": "cuda:0"})
    results: Stream = connect(nslots=4)
    frame = receive(stream, np.full((2, 3), 1.0))
    assert frame.valid()
    api.is_held = True
    # A kernel that writes the frame in place, and has not run yet.
    kernel = api.create_stream()
    capsule = frame.__dlpack__(stream=kernel, max_version=(1, 0))
    api.copy_on_device(frame.array.address, DeviceTensor(api, np.full(6, 2.0)).address, 48, kernel)
    assert results.send(frame).copy().tolist() == [[2.0] * 3] * 2
    assert results.send(frame.array).copy().tolist() == [[2.0] * 3] * 2
    results.producer.close()
    del capsule, frame
    # The stream of the producer has ended: the next copy into the buffer does not wait for it.
    api.log.clear()
    assert receive(stream, np.full((2, 3), 3.0)).valid()
    assert api.log.count("wait_for_event") == 1
    assert "synchronize_device" not in api.log


def test_an_offer_of_a_closed_producer_opens_no_device(connect, api: StandInCuda) -> None:
    for settings in ({}, {"device": "cuda:0"}):
        stream: Stream = connect(nslots=2, **settings)
        tensor = DeviceTensor(api, np.zeros(4))
        stream.producer.close()
        streams, events = set(api.streams), set(api.events)
        with pytest.warns(tp.OfferWarning, match="closed"):
            assert stream.producer.offer(tensor).outcome == "closed"
        assert (set(api.streams), set(api.events)) == (streams, events)


def test_a_tensor_of_another_device_is_copied_on_its_own_device(
    connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-ins know no stream of each other, and the default stream of each is another."""
    devices = [StandInCuda(0), StandInCuda(1)]
    monkeypatch.setattr("tensorpool.client.producer.open_api", lambda ordinal: devices[ordinal])
    monkeypatch.setattr(
        "tensorpool.client.producer.writer_for",
        lambda tensor: SlotWriter(devices[0], lambda ordinal: devices[ordinal]),
    )
    for settings in ({}, {"device": "cuda:0"}):
        stream: Stream = connect(nslots=4, **settings)
        for device in (devices[1], devices[0], devices[1]):
            tensor = DlpackTensor(device, np.full(4, float(device.ordinal)), code=2)
            device.is_held = True
            assert (stream.send(tensor).copy() == device.ordinal).all()
            device.is_held = False
            assert tensor.streams[0] in device.streams
        stream.producer.close()
    for device in devices:
        assert not device.registered
        assert set(device.streams) == {1}
        assert not device.events


def test_a_close_waits_for_the_commits_of_every_device(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=4, device="cuda:0")
    other = StandInCuda(1)
    other.is_held = True
    writes = other.create_stream()
    slot = stream.producer.claim((4,), "float64")
    other.copy_to_host(slot.address, DeviceTensor(other, np.full(4, 3.0)).address, 32, writes)
    commit_after(slot, writes, other)
    stream.producer.close()
    assert slot.result is not None
    assert slot.result.outcome == "published"
    assert (stream.consumer.receive(DEADLINE_S).copy() == 3.0).all()


def test_a_slot_that_is_given_up_is_not_written_any_more(
    connect, api: StandInCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next frame gets the same slot: a copy that is still under way would change it."""
    stream: Stream = connect(nslots=2, device="cuda:0")
    api.is_held = True
    writes = api.create_stream()
    tensor = DeviceTensor(api, np.full(4, 9.0))

    def refuse(*args: object, **options: object) -> None:
        raise DeviceError("no", code="cudaErrorNotSupported")

    def interrupt(_stream: int) -> None:
        raise KeyboardInterrupt

    def claim_and_copy() -> tp.Slot:
        slot = stream.producer.claim((4,), "float64")
        api.copy_to_host(slot.address, tensor.address, 32, writes)
        return slot

    slot = claim_and_copy()
    with monkeypatch.context() as patch:
        patch.setattr(api, "write_word", refuse)
        with pytest.raises(DeviceError):
            commit_after(slot, writes, api)
    frame = stream.send(np.full(4, 1.0))
    assert not api.streams[writes]
    assert (frame.copy() == 1.0).all()

    slot = claim_and_copy()
    with monkeypatch.context() as patch:
        patch.setattr("tensorpool.cuda.slots.commits_of", refuse)
        with pytest.raises(DeviceError):
            commit_after(slot, writes, api)
    assert not api.streams[writes]
    slot.abandon()

    with monkeypatch.context() as patch:
        patch.setattr(api, "synchronize_stream", interrupt)
        with pytest.raises(KeyboardInterrupt):
            stream.producer.offer(tensor)
    assert not any(api.streams.values())


def test_a_failed_copy_abandons_the_slot(connect, api: StandInCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    stream: Stream = connect(nslots=4)

    def fail(*args: object) -> None:
        raise DeviceError("lost", code="cudaErrorIllegalAddress")

    monkeypatch.setattr(api, "copy_to_host", fail)
    with pytest.raises(DeviceError, match="lost"):
        stream.producer.offer(DeviceTensor(api, np.zeros(4)))
    assert stream.send(np.ones(4)).seq == 0


def test_a_claimed_slot_is_committed_when_its_stream_gets_there(
    connect, api: StandInCuda, wait_until
) -> None:
    stream: Stream = connect(nslots=4, device="cuda:0")
    api.is_held = True
    writes = api.create_stream()
    tensor = DeviceTensor(api, np.full(4, 9.0))
    slot = stream.producer.claim((4,), "float64")
    assert api.registered
    target, _ = slot.array.__array_interface__["data"]
    api.copy_to_host(target, tensor.address, 32, writes)
    commit_after(slot, writes, api)
    assert slot.result is None
    assert "waits for its stream" in repr(slot)
    assert stream.consumer.receive_or_none(0.05) is None
    api.synchronize_stream(writes)
    wait_until(lambda: slot.result is not None, timeout=DEADLINE_S)
    assert slot.result is not None
    assert slot.result.outcome == "published"
    assert (stream.consumer.receive(DEADLINE_S).copy() == 9.0).all()
    with pytest.raises(tp.ClosedError):
        slot.commit()


def test_commits_of_several_streams_keep_the_order_of_the_claims(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=64, device="cuda:0", consumer={"max_outstanding_seq_gap": 1000})
    api.is_held = True
    streams = [api.create_stream() for _ in range(3)]
    for turn in range(20):
        for i in range(60):
            slot = stream.producer.claim((1,), "float64")
            slot.array[0] = i
            commit_after(slot, streams[i % 3], api)
        for writes in reversed(streams):
            api.synchronize_stream(writes)
        for i in range(60):
            frame = stream.consumer.receive(DEADLINE_S)
            assert (frame.seq, frame.copy()[0]) == (60 * turn + i, i)
    assert stream.consumer.ledger().balanced


def test_closing_a_producer_publishes_what_its_streams_have_written(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=64, device="cuda:0", consumer={"max_outstanding_seq_gap": 1000})
    api.is_held = True
    writes = api.create_stream()
    slots = [stream.producer.claim((1,), "float64") for _ in range(50)]
    for slot in slots:
        commit_after(slot, writes, api)
    stream.producer.close()
    assert [slot.result and slot.result.outcome for slot in slots] == ["published"] * 50


def test_a_stream_that_cannot_be_used_abandons_the_slot(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=4, device="cuda:0")
    slot = stream.producer.claim((4,), "float64")
    with pytest.raises(DeviceError):
        commit_after(slot, 99_999, api)
    assert stream.send(np.ones(4)).seq == 0


def test_consumers_of_two_devices_copy_the_same_frame(
    connect, context: tp.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [StandInCuda(0), StandInCuda(1)]
    monkeypatch.setattr("tensorpool.client.consumer.open_api", lambda ordinal: devices[ordinal])
    stream: Stream = connect(nslots=4, consumer={"device": "cuda:0", "timeout": DEADLINE_S})
    with context.consumer(stream.producer.stream_id, device="cuda:1", timeout=DEADLINE_S) as second:
        assert second.wait_for_producer(DEADLINE_S)
        first = receive(stream, np.arange(4.0))
        copied = second.receive(DEADLINE_S).to_device()
        assert (first.device, copied.device) == ("cuda:0", "cuda:1")
        assert np.array_equal(first.copy_to_host(), copied.copy_to_host())
        assert all(device.registered for device in devices)
    assert not devices[1].registered
    assert devices[0].registered


# --- names and errors


def test_devices_and_streams_as_users_write_them() -> None:
    class Torch:
        cuda_stream = 77

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 88

    assert [parse_device(text) for text in ("cuda", "cuda:0", "cuda:3")] == [0, 0, 3]
    for text in ("gpu", "cuda:", "cpu", "cuda:-1"):
        with pytest.raises(ConfigError, match="use 'cuda'"):
            parse_device(text)
    assert [stream_address(s) for s in (None, -1, 0, 5, Torch(), Protocol())] == [None, None, 1, 5, 77, 88]
    with pytest.raises(ConfigError, match="give a CUDA stream"):
        stream_address("fast")


def test_the_error_of_a_consumer_without_a_device_names_the_option(connect) -> None:
    stream: Stream = connect(nslots=2)
    frame = stream.send(np.zeros(4))
    with pytest.raises(ValueError, match='device="cuda:0"'):
        frame.to_device()
    with pytest.raises(ConfigError, match='device="cuda:0"'):
        stream.consumer.on_device()


def test_without_the_extra_the_error_names_it(context: tp.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(MissingPackage, match=r"aeron-tensorpool\[cuda\]"):
        context.consumer(4711, device="cuda:0")
