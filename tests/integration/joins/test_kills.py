"""Joins, stages and limiters whose inputs or driver are killed: they resume by themselves, and their ledgers
add up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp

DEADLINE_S = 120
WaitUntil = Callable[..., Any]

CAMERA = """
import sys, time
import numpy as np
import tensorpool as tp

aeron_dir, base_dir, stream_id = sys.argv[1:]
with tp.open("driver", aeron_dir=aeron_dir, shm_base_dir=base_dir) as ctx:
    # The lease of a killed camera ends some keepalives later; until then the stream is held.
    camera = None
    while camera is None:
        try:
            camera = ctx.producer(int(stream_id), pools=["4KiB"], nslots=64)
        except tp.AttachError as error:
            if error.code != "REJECTED":
                raise
    while True:
        camera.offer(np.zeros(16))
        time.sleep(0.002)
"""


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child process that ends with the block, by SIGKILL."""
    child = subprocess.Popen([sys.executable, *arguments])
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def camera(ctx: tp.Context, stream_id: int) -> Any:
    return process("-c", CAMERA, ctx.aeron_dir, str(ctx.shm_base_dir), str(stream_id))


def joined_after(
    pairs: tp.Join, local: tp.Producer, is_expected: Callable[[Any], bool], wait_until: WaitUntil
) -> Any:
    """The first result that is as expected."""

    def result() -> Any:
        local.offer(np.zeros(16))
        joined = pairs.receive_or_none(0.02)
        return joined if joined is not None and is_expected(joined) else None

    return wait_until(result, timeout=DEADLINE_S)


@pytest.mark.parametrize("drive", ["local", "remote"])
def test_killed_input_is_joined_again_after_its_restart(
    ctx: tp.Context, free_stream_ids: Callable[[], int], wait_until: WaitUntil, drive: str
) -> None:
    stream_id = free_stream_ids()
    local = ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=64)
    inputs = {"local": local.stream_id, "remote": stream_id}
    with ctx.join(inputs, by="time", tolerance=0.5, stale_after=0.5, drive=drive) as pairs:
        with camera(ctx, stream_id):
            first = joined_after(pairs, local, lambda joined: "remote" in joined, wait_until)
        if drive == "local":
            # Killed: the other input continues, and each result says what is absent.
            joined_after(pairs, local, lambda joined: joined.absent == ("remote",), wait_until)
        with camera(ctx, stream_id):
            epoch = first["remote"].epoch
            joined_after(
                pairs,
                local,
                lambda joined: not joined.absent and joined["remote"].epoch > epoch,
                wait_until,
            )
        assert pairs.ledger().balanced


@pytest.mark.leaves_files("a driver is killed")
def test_join_goes_on_after_its_driver_was_killed(
    aeron_dir: Path, shm_base: Path, free_stream_ids: Callable[[], int], wait_until: WaitUntil
) -> None:
    directory = str(aeron_dir)
    driver = ("-m", "tensorpool", "driver", "--aeron-dir", directory, "--set", f"shm.base_dir={shm_base}")
    settings = ("--set", "aeron.media_driver=external", "--set", "driver.any_stream=true")
    with (
        tp.MediaDriver(directory),
        process(*driver, *settings) as first,
        tp.open("driver", aeron_dir=directory, shm_base_dir=shm_base) as ctx,
    ):
        left, right = (ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=64) for _ in range(2))
        inputs = {"left": left.stream_id, "right": right.stream_id}
        with ctx.join(inputs, by="time", tolerance=1) as pairs:

            def result() -> Any:
                left.offer(np.zeros(16))
                right.offer(np.zeros(16))
                return pairs.receive_or_none(0.02)

            before = wait_until(result, timeout=DEADLINE_S)
            first.kill()
            first.wait()
            with process(*driver, *settings):

                def later() -> bool:
                    joined = result()
                    return joined is not None and joined["left"].epoch > before["left"].epoch

                wait_until(later, timeout=DEADLINE_S)
                assert pairs.ledger().balanced
                left.close()
                right.close()


def test_limiter_continues_after_its_source_was_killed(
    ctx: tp.Context, free_stream_ids: Callable[[], int], wait_until: WaitUntil
) -> None:
    stream_id, destination = free_stream_ids(), free_stream_ids()
    with (
        tp.Limiter(ctx, stream_id, destination, max_rate_hz=100) as limiter,
        ctx.consumer(destination) as limited,
    ):
        epochs: list[int] = []
        for _ in range(2):
            with camera(ctx, stream_id):

                def frame() -> tp.Frame | None:
                    received = limited.receive_or_none(0.05)
                    return None if received is None or received.epoch in epochs else received

                epochs.append(wait_until(frame, timeout=DEADLINE_S).epoch)
        assert epochs[1] > epochs[0]
        assert (limiter.is_running, limiter.error) == (True, None)
    ledger = limiter.ledger()
    assert ledger.source.span == ledger.source.received + sum(ledger.source.dropped.values())
    not_copied = ledger.dropped["no_pool"] + ledger.dropped["no_slot"]
    assert ledger.source.received == ledger.forwarded + not_copied


@pytest.mark.leaves_files("a driver is killed")
def test_stage_and_limiter_continue_after_their_driver_was_killed(
    aeron_dir: Path, shm_base: Path, free_stream_ids: Callable[[], int], wait_until: WaitUntil
) -> None:
    directory = str(aeron_dir)
    driver = ("-m", "tensorpool", "driver", "--aeron-dir", directory, "--set", f"shm.base_dir={shm_base}")
    settings = ("--set", "aeron.media_driver=external", "--set", "driver.any_stream=true")
    with (
        tp.MediaDriver(directory),
        process(*driver, *settings) as first,
        tp.open("driver", aeron_dir=directory, shm_base_dir=shm_base) as ctx,
    ):
        source = ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=64)
        stage = tp.stage(source.stream_id, np.array, free_stream_ids(), name="copy")
        destination = free_stream_ids()
        with (
            stage.start(ctx) as running,
            tp.Limiter(ctx, source.stream_id, destination, max_rate_hz=0) as limiter,
            ctx.consumer(stage.output) as staged,
            ctx.consumer(destination) as limited,
        ):

            def epochs_after(epochs: dict[str, int]) -> dict[str, int] | None:
                """The epochs of both outputs, once both have frames of a later one."""
                source.offer(np.zeros(16))
                for name, consumer in (("stage", staged), ("limiter", limited)):
                    for frame in consumer.poll():
                        found[name] = frame.epoch
                return dict(found) if all(found[name] > epochs[name] for name in epochs) else None

            found = {"stage": 0, "limiter": 0}
            before = wait_until(lambda: epochs_after({"stage": 0, "limiter": 0}), timeout=DEADLINE_S)
            first.kill()
            first.wait()
            with process(*driver, *settings):
                wait_until(lambda: epochs_after(before), timeout=DEADLINE_S)
                assert (limiter.is_running, limiter.error) == (True, None)
                assert "failed" not in running.status()["dropped"]
                running.close()
                limiter.close()
                source.close()
