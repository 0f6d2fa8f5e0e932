"""Frames on a real GPU, with torch, CuPy and JAX. `make test-gpu` runs these.

The number of frames of the soak is TENSORPOOL_GPU_FRAMES (20,000 by default).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import tensorpool as tp

torch = pytest.importorskip("torch", reason="the GPU tests need torch")
pytest.importorskip("cuda.bindings", reason="the GPU tests need NVIDIA's bindings")
if not torch.cuda.is_available():
    pytest.skip("this machine has no GPU", allow_module_level=True)

from tensorpool.cuda import DeviceFrame  # noqa: E402

SOAK_FRAMES = int(os.environ.get("TENSORPOOL_GPU_FRAMES", "20000"))
SOAK_S = 200.0
DEADLINE_S = 60.0
STREAM = 10_001


@pytest.fixture
def ctx() -> Iterator[tp.Context]:
    with tp.open(mode="embedded") as ctx:
        yield ctx


def pair(ctx: tp.Context, **producer: Any) -> tuple[tp.Producer, tp.Consumer]:
    made = ctx.producer(STREAM, **{"pools": ["32MiB"], "nslots": 4, **producer})
    consumer = ctx.consumer(STREAM, device="cuda:0", timeout=DEADLINE_S)
    assert consumer.wait_for_producer(DEADLINE_S)
    return made, consumer


def send(producer: tp.Producer, consumer: tp.Consumer, array: Any, **options: Any) -> DeviceFrame:
    assert producer.offer(array, **options)
    return consumer.receive(DEADLINE_S).to_device()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64", "float32", "float64", "bool"])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (0, 7)])
def test_each_library_takes_a_frame_over(ctx: tp.Context, dtype: str, shape: tuple[int, ...]) -> None:
    cupy = pytest.importorskip("cupy")
    producer, consumer = pair(ctx)
    array = (np.arange(np.prod(shape)).reshape(shape) % 2).astype(dtype)
    assert np.array_equal(torch.from_dlpack(send(producer, consumer, array)).cpu().numpy(), array)
    assert np.array_equal(cupy.from_dlpack(send(producer, consumer, array)).get(), array)
    assert np.array_equal(cupy.asarray(send(producer, consumer, array)).get(), array)
    assert consumer.device is not None
    assert consumer.device.registered_epochs


def test_jax_takes_a_frame_over(ctx: tp.Context) -> None:
    jax = pytest.importorskip("jax")
    producer, consumer = pair(ctx)
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    taken = jax.dlpack.from_dlpack(send(producer, consumer, array))
    assert next(iter(taken.devices())).platform in ("gpu", "cuda")
    assert np.array_equal(np.asarray(taken), array)
    # From shared memory to the memory of the CPU, without a GPU in between.
    assert producer.offer(array)
    assert np.array_equal(np.asarray(jax.numpy.from_dlpack(consumer.receive(DEADLINE_S))), array)


def test_complex_and_padded_frames(ctx: tp.Context) -> None:
    producer, consumer = pair(ctx, metadata={})
    values = (np.arange(6) + 1j).astype(np.complex64).reshape(2, 3)
    assert np.array_equal(torch.from_dlpack(send(producer, consumer, values)).cpu().numpy(), values)
    padded = np.arange(4000, dtype=np.uint8).reshape(4, 1000)[:, :640]
    frame = send(producer, consumer, padded, keep_strides=True)
    assert np.array_equal(torch.from_dlpack(frame).cpu().numpy(), padded)


def test_a_copy_to_the_gpu_may_be_asked_for_by_dlpack(ctx: tp.Context) -> None:
    producer, consumer = pair(ctx)
    array = np.arange(8, dtype=np.int32)
    assert producer.offer(array)
    frame = consumer.receive(DEADLINE_S)
    on_gpu = torch.utils.dlpack.from_dlpack(frame.__dlpack__(dl_device=(2, 0), stream=1, max_version=(1, 0)))
    assert on_gpu.is_cuda
    assert np.array_equal(on_gpu.cpu().numpy(), array)


def test_tensors_of_the_gpu_are_offered(ctx: tp.Context) -> None:
    cupy = pytest.importorskip("cupy")
    producer, consumer = pair(ctx)
    image = torch.arange(64 * 64, device="cuda", dtype=torch.float32).reshape(64, 64)
    for tensor in (image, image[:, :48], image[::2], image[:, ::2], image.to(torch.int16), image > 7):
        assert producer.offer(tensor)
        assert np.array_equal(consumer.receive(DEADLINE_S).copy(), tensor.cpu().numpy())
    with pytest.raises(tp.ConfigError, match="contiguous"):
        producer.offer(image[:, ::3][:, :10])
    assert producer.offer(cupy.arange(10))
    assert np.array_equal(consumer.receive(DEADLINE_S).copy(), np.arange(10))


def test_an_offer_waits_for_the_work_that_makes_the_tensor(ctx: tp.Context) -> None:
    producer, consumer = pair(ctx)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for value in range(20):
            tensor = torch.full((1 << 20,), -1.0, device="cuda")
            torch.cuda._sleep(2_000_000)
            tensor.fill_(value)
            assert producer.offer(tensor)
            assert (consumer.receive(DEADLINE_S).copy() == value).all()


def test_a_slot_is_committed_when_its_stream_gets_there(ctx: tp.Context) -> None:
    producer, consumer = pair(ctx, device="cuda:0")
    image = torch.arange(1 << 20, device="cuda", dtype=torch.int32)
    stream = torch.cuda.Stream()
    for _ in range(20):
        slot = producer.claim((1 << 20,), "int32")
        target = torch.from_numpy(slot.array)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            target.copy_(image, non_blocking=True)
            slot.commit_after(stream)
        assert slot.result is None, "the caller waits for nothing"
        assert np.array_equal(consumer.receive(DEADLINE_S).copy(), np.arange(1 << 20))


def test_frames_that_streams_commit_are_whole(ctx: tp.Context) -> None:
    """Each word proves its frame, and is read as soon as the frame is published."""
    producer, consumer = pair(ctx, device="cuda:0", nslots=16)
    streams = [torch.cuda.Stream() for _ in range(2)]
    images = [torch.full((1 << 20,), i, device="cuda", dtype=torch.int32) for i in range(16)]
    torch.cuda.synchronize()
    published = seen = 0
    while published < 3000:
        with suppress(tp.ClaimRefused):  # all slots wait for their streams
            slot = producer.claim((1 << 20,), "int32")
            with torch.cuda.stream(streams[published % 2]):
                torch.from_numpy(slot.array).copy_(images[slot.seq % 16], non_blocking=True)
                slot.commit_after(streams[published % 2])
            published += 1
        for frame in consumer.poll():
            first, last = frame.array[:: 1 << 8].copy(), int(frame.array[-1])
            if frame.valid():
                assert (first == frame.seq % 16).all()
                assert last == frame.seq % 16
                seen += 1
    assert seen > 100


def _produce(aeron_dir: str, base: str, nwords: int, pause_s: float, ready: Any) -> None:
    with (
        tp.open(aeron_dir=aeron_dir, shm_base_dir=base) as ctx,
        ctx.producer(STREAM, pools=[nwords * 8], nslots=2) as p,
    ):
        ready.set()
        while True:
            with p.claim((nwords,), "uint64") as slot:
                slot.array.fill(slot.seq)
            until = time.perf_counter() + pause_s
            while time.perf_counter() < until:
                pass


@pytest.fixture
def camera(ctx: tp.Context) -> Iterator[Any]:
    """A process that publishes as fast as it can into a ring of two, each word the frame's sequence."""
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    started = []

    def start(nwords: int, pause_s: float = 0.0) -> Any:
        process = spawn.Process(
            target=_produce, args=(ctx.aeron_dir, str(ctx.shm_base_dir), nwords, pause_s, ready), daemon=True
        )
        process.start()
        started.append(process)
        assert ready.wait(DEADLINE_S)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


@pytest.mark.parametrize(("nwords", "pause_s"), [(1 << 17, 0.0), (2048, 30e-6)], ids=["flood", "paced"])
def test_no_torn_frame_reaches_a_kernel(ctx: tp.Context, camera: Any, nwords: int, pause_s: float) -> None:
    camera(nwords, pause_s)
    seen, wrong = 0, torch.zeros((), dtype=torch.int64, device="cuda")
    with ctx.consumer(STREAM, device="cuda:0", timeout=DEADLINE_S, policy="latest") as consumer:
        until = time.monotonic() + SOAK_S
        for frame in consumer.on_device(depth=2):
            wrong += (torch.from_dlpack(frame).view(torch.int64) != frame.seq).any()
            seen += 1
            if seen >= SOAK_FRAMES or time.monotonic() > until:
                break
        ledger = consumer.ledger()
    assert int(wrong) == 0
    print(f"\n{seen} frames reached the GPU, {ledger}")
    assert ledger.balanced
    assert seen >= min(SOAK_FRAMES, 1000)


def test_a_killed_producer_while_copies_run(ctx: tp.Context, camera: Any) -> None:
    first = camera(1 << 20)
    with ctx.consumer(STREAM, device="cuda:0", timeout=DEADLINE_S) as consumer:
        frames = consumer.on_device()
        epoch = next(frames).epoch
        os.kill(first.pid, signal.SIGKILL)
        camera(1 << 20)
        for frame in frames:
            torch.from_dlpack(frame).sum()
            if frame.epoch != epoch:
                break
        assert consumer.device is not None
        assert consumer.device.registered_epochs == (frame.epoch,)


def test_a_consumer_closed_while_copies_run_leaks_nothing(ctx: tp.Context) -> None:
    producer = ctx.producer(STREAM, pools=["32MiB"], nslots=4)
    image = np.ones(32 << 20, np.uint8)
    free_before = None
    for turn in range(20):
        consumer = ctx.consumer(STREAM, device="cuda:0", timeout=DEADLINE_S)
        assert consumer.wait_for_producer(DEADLINE_S)
        copies = []
        for _ in range(3):
            assert producer.offer(image)
            copies.append(consumer.receive(DEADLINE_S).to_device())
        consumer.close()
        assert all(copy.valid() for copy in copies)
        copies.clear()
        gc.collect()
        torch.cuda.synchronize()
        free, _ = torch.cuda.mem_get_info()
        if turn == 2:
            free_before = free
    assert free_before is not None
    assert abs(free - free_before) < 8 << 20


def test_a_device_that_does_not_exist(ctx: tp.Context) -> None:
    with pytest.raises(tp.TensorPoolError, match="cuda:63 does not exist"):
        ctx.consumer(STREAM, device="cuda:63")
