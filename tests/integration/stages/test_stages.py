"""Stages: a function between streams, its service, its drops, and the example files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tensorpool as tp

DEADLINE_S = 60
EXAMPLES = Path(__file__).parents[3] / "examples" / "stage"
StreamIds = Callable[[], int]
WaitUntil = Callable[..., Any]
Array = npt.NDArray[Any]


@pytest.fixture
def ctx(aeron_dir: Path, shm_base: Path) -> Iterator[tp.Context]:
    with tp.open(aeron_dir=str(aeron_dir), shm_base_dir=shm_base) as context:
        yield context


def test_stage_publishes_results_with_time_name_and_lineage(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    left, right = (ctx.producer(free_stream_ids(), pools=["4KiB"], traces=True) for _ in range(2))

    def weighted_sum(left: Array, right: Array) -> Array:
        return 2 * left + right

    inputs = {"left": left.stream_id, "right": right.stream_id}
    stage = tp.stage(inputs, weighted_sum, free_stream_ids(), by="sequence")
    assert stage.name == "weighted-sum"
    with stage.start(ctx) as running, ctx.consumer(stage.output) as results:

        def result() -> tp.Frame | None:
            left.offer(np.full(4, 10.0), timestamp_ns=77)
            right.offer(np.full(4, 1.0))
            return results.receive_or_none(0.1)

        frame = wait_until(result, timeout=DEADLINE_S)
        assert frame.array[0] == 21.0
        assert frame.timestamp_ns == 77
        assert frame.trace_id is not None
        assert wait_until(lambda: results.source_name) == "weighted-sum"
        assert running.status()["published"] >= 1


def test_failures_and_absent_results_are_counted_and_the_stage_goes_on(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    source = ctx.producer(free_stream_ids(), pools=["4KiB"])

    def picky(frame: Array) -> Array | None:
        if frame[0] % 3 == 0:
            raise ValueError("a multiple of three")
        return None if frame[0] % 3 == 1 else np.array(frame)

    stage = tp.stage(source.stream_id, picky, free_stream_ids(), workers=2)
    with stage.start(ctx) as running, ctx.consumer(stage.output), ctx.serve(running.service):

        def has_all() -> bool:
            source.offer(np.full(4, source.next_seq))
            status = running.status()
            return {"failed", "no_result"} <= status["dropped"].keys() and status["published"] > 0

        wait_until(has_all, timeout=DEADLINE_S)
        assert "a multiple of three" in running.status()["last_error"]
        with ctx.service("stage", instance="picky", timeout=DEADLINE_S) as client:
            client.set("paused", True)
            assert client.call("status")["workers"] == 2

            def is_paused() -> bool:
                source.offer(np.full(4, 2))
                return "paused" in running.status()["dropped"]

            wait_until(is_paused)


def test_input_that_restarts_does_not_end_the_stage(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    source_id = free_stream_ids()
    stage = tp.stage(source_id, np.array, free_stream_ids(), name="copy")
    with stage.start(ctx) as running, ctx.consumer(stage.output):
        for _ in range(2):
            before = running.status()["published"]
            with ctx.producer(source_id, pools=["4KiB"]) as source:
                wait_until(
                    lambda: source.offer(np.zeros(4)) and running.status()["published"] > before,  # noqa: B023
                    timeout=DEADLINE_S,
                )


@pytest.mark.parametrize(
    ("options", "message"), [({"workers": 0}, "workers"), ({"name": "ä"}, "name the stage")]
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tp.ConfigError, match=message):
        tp.stage(1, np.array, 2, **options)
    with pytest.raises(tp.ConfigError, match="by="):
        tp.stage({"a": 1}, np.array, 2, by="colour")  # type: ignore[arg-type]


def run_example(ctx: tp.Context, example: str) -> subprocess.Popen[str]:
    """Starts `tensorpool run` with an example, on the drivers of the context."""
    environment = {
        **os.environ,
        "AERON_DIR": ctx.aeron_dir,
        "TENSORPOOL_SHM__BASE_DIR": str(ctx.shm_base_dir),
    }
    command = [sys.executable, "-m", "tensorpool", "run", str(EXAMPLES / f"{example}.py")]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def test_stage_that_was_killed_continues_when_it_is_started_again(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    cameras = [
        ctx.producer(free_stream_ids(), name=name, pools=["1MiB"], nslots=8, traces=True)
        for name in ("camera-1", "camera-2")
    ]
    with ctx.consumer(30020) as results:
        epochs = []
        for _ in range(2):
            process = run_example(ctx, "difference")

            def result() -> tp.Frame | None:
                for number, camera in enumerate(cameras):
                    camera.offer(np.full((480, 640), 100 + 5 * number, np.uint16))
                frame = results.receive_or_none(0.05)
                return None if frame is None or frame.epoch in epochs else frame

            try:
                frame = wait_until(result, timeout=DEADLINE_S)
                # In the middle: it has frames that it joins, and publishes.
                epochs.append(frame.epoch)
            finally:
                process.kill()
                process.communicate(timeout=DEADLINE_S)
        assert epochs[1] > epochs[0]
        ledger = results.ledger()
        assert ledger.span == ledger.received + sum(ledger.dropped.values())


@pytest.mark.parametrize("example", ["flat_field", "difference"])
def test_example_runs_by_the_command(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil, example: str
) -> None:
    names = ["lab-camera"] if example == "flat_field" else ["camera-1", "camera-2"]
    output = 30010 if example == "flat_field" else 30020
    cameras = [
        ctx.producer(free_stream_ids(), name=name, pools=["1MiB"], nslots=8, traces=True) for name in names
    ]
    process = run_example(ctx, example)
    try:
        with ctx.consumer(output) as results:

            def result() -> tp.Frame | None:
                for number, camera in enumerate(cameras):
                    camera.offer(np.full((480, 640), 100 + 5 * number, np.uint16))
                return results.receive_or_none(0.1)

            frame = wait_until(result, timeout=DEADLINE_S)
            expected = 100.0 / 0.4 if example == "flat_field" else -5
            assert frame.copy()[0, 0] == pytest.approx(expected, rel=1e-4)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
