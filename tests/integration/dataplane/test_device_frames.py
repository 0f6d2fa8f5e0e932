"""Frames on a device: registration by epoch, the order of copy, proof and hand-out, fallbacks and limits.

The device is a stand-in whose copies run when something waits for them, so that a frame can be overwritten
while it is copied. `make test-gpu` runs the same paths on a real one.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.cuda import Device, DeviceFrame, SlotWriter, commit_after, parse_device, stream_address
from tensorpool.errors import ConfigError, DeviceError, MissingPackage
from tests.integration.dataplane.conftest import DEADLINE_S, Stream
from tests.stand_in_cuda import DeviceTensor, StandInCuda


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


def test_an_offer_that_fits_no_pool_is_counted_as_such(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=4, pools=["4KiB"])
    result = stream.producer.offer(DeviceTensor(api, np.zeros((16, 1024), np.float32)))
    assert (bool(result), result.outcome, result.seq) == (False, "no_pool", None)
    assert stream.producer.ledger().dropped["no_pool"] == 1


def test_a_failed_copy_abandons_the_slot(connect, api: StandInCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    stream: Stream = connect(nslots=4)

    def fail(*args: object) -> None:
        raise DeviceError("lost", code="cudaErrorIllegalAddress")

    monkeypatch.setattr(api, "copy_to_host", fail)
    with pytest.raises(DeviceError, match="lost"):
        stream.producer.offer(DeviceTensor(api, np.zeros(4)))
    assert stream.send(np.ones(4)).seq == 0


def test_a_claimed_slot_is_committed_when_its_stream_gets_there(connect, api: StandInCuda) -> None:
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
    assert slot.result is not None
    assert slot.result.outcome == "published"
    assert (stream.consumer.receive(DEADLINE_S).copy() == 9.0).all()
    with pytest.raises(tp.ClosedError):
        slot.commit()


def test_a_stream_that_cannot_be_used_abandons_the_slot(connect, api: StandInCuda) -> None:
    stream: Stream = connect(nslots=4, device="cuda:0")
    slot = stream.producer.claim((4,), "float64")
    with pytest.raises(DeviceError):
        commit_after(slot, 99_999, api)
    assert stream.send(np.ones(4)).seq == 0


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
    assert [stream_address(s) for s in (None, 0, 5, Torch(), Protocol())] == [None, 1, 5, 77, 88]
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
