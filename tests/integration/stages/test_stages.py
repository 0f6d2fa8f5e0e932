"""Stages: a function between streams, its service, its drops, and the example files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tensorpool as tp
from tensorpool.sbe import decode
from tensorpool.sbe.trace import TraceLinkSet
from tensorpool.stages import RunningStage

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
    stage = tp.stage(
        inputs, weighted_sum, free_stream_ids(), by="sequence", producer={"metadata": {"gain": 3}}
    )
    assert stage.name == "weighted-sum"
    control = ctx.connection.subscription(ctx.stream_ids.control, tethered=True)
    trace_ids: dict[str, dict[int, int | None]] = {"left": {}, "right": {}}
    links: dict[int | None, TraceLinkSet] = {}
    with (
        stage.start(ctx) as running,
        ctx.consumer(stage.output) as results,
        ctx.consumer(left.stream_id) as lefts,
        ctx.consumer(right.stream_id) as rights,
    ):

        def result() -> tp.Frame | None:
            left.offer(np.full(4, 10.0), timestamp_ns=77)
            right.offer(np.full(4, 1.0))
            frame = results.receive_or_none(0.1)
            for name, consumer in (("left", lefts), ("right", rights)):
                trace_ids[name] |= {each.seq: each.trace_id for each in consumer.poll()}
            for message in map(decode, control.poll()):
                if isinstance(message, TraceLinkSet) and message.stream_id == stage.output:
                    links[message.trace_id] = message
            # The first links may come before their publication is connected.
            return frame if frame is not None and frame.trace_id in links else None

        frame = wait_until(result, timeout=DEADLINE_S)
        assert frame.array[0] == 21.0
        assert frame.timestamp_ns == 77
        parents = [parent.trace_id for parent in links[frame.trace_id].parents]
        pairs = [(trace_id, trace_ids["right"].get(seq)) for seq, trace_id in trace_ids["left"].items()]
        assert tuple(parents) in pairs
        assert wait_until(lambda: results.source_name) == "weighted-sum"
        assert (results.metadata or {})["gain"] == 3
        assert running.status()["published"] >= 1
    control.close()


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


def test_function_that_is_too_slow_costs_frames_by_reason(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    source = ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=8)
    has_begun, may_end = threading.Event(), threading.Event()

    def slow(frame: Array) -> Array:
        has_begun.set()
        assert may_end.wait(DEADLINE_S)
        return np.array(frame)

    stage = tp.stage(source.stream_id, slow, free_stream_ids())
    with stage.start(ctx) as running, ctx.consumer(stage.output) as results:

        def is_working() -> bool:
            source.offer(np.zeros(4))
            return has_begun.is_set()

        wait_until(is_working, timeout=DEADLINE_S)
        # The producer does not wait: it goes several times round its ring while the function works.
        for _ in range(100):
            assert source.offer(np.zeros(4))
        may_end.set()

        def is_counted() -> bool:
            source.offer(np.zeros(4))
            results.poll()
            status = running.status()
            # The frame in the function was overwritten, and those after it before they were joined.
            return (
                status["published"] > 0
                and status["dropped"].get("overwritten", 0) > 0
                and sum(status["inputs"]["frame"].values()) >= 80
            )

        wait_until(is_counted, timeout=DEADLINE_S)


def test_workers_call_the_function_at_the_same_time(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    source = ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=64)
    # Passed only by three threads that are in the function together.
    together = threading.Barrier(3)

    def meeting(frame: Array) -> Array:
        together.wait(DEADLINE_S)
        return np.array(frame)

    stage = tp.stage(source.stream_id, meeting, free_stream_ids(), workers=3)
    with stage.start(ctx) as running, ctx.consumer(stage.output) as results:

        def has_results() -> bool:
            source.offer(np.zeros(4))
            results.poll()
            return running.status()["published"] >= 3

        wait_until(has_results, timeout=DEADLINE_S)
        assert running.status()["dropped"].get("failed", 0) == 0
        together.abort()


@pytest.mark.parametrize(
    ("options", "message"), [({"workers": 0}, "workers"), ({"name": "ä"}, "name the stage")]
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tp.ConfigError, match=message):
        tp.stage(1, np.array, 2, **options)
    for inputs in (1, {"a": 1}):
        with pytest.raises(tp.ConfigError, match="by="):
            tp.stage(inputs, np.array, 2, by="colour")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="nslots="):
        tp.stage(1, np.array, 2, producer={"slots": 8})  # type: ignore[arg-type]


def test_second_stage_of_an_output_waits_for_the_first_and_reports_it(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    source, output = ctx.producer(free_stream_ids(), pools=["4KiB"]), free_stream_ids()

    def publishes(running: RunningStage) -> bool:
        source.offer(np.zeros(4))
        return running.status()["published"] > 0

    with ctx.consumer(output):
        with tp.stage(source.stream_id, np.array, output, name="first").start(ctx) as first:
            wait_until(lambda: publishes(first), timeout=DEADLINE_S)
            second = tp.stage(source.stream_id, np.array, output, name="second").start(ctx)
            wait_until(lambda: "has a producer already" in second.status()["last_error"], timeout=DEADLINE_S)
            assert second.status()["published"] == 0
        with second:
            wait_until(lambda: publishes(second), timeout=DEADLINE_S)


def test_stage_ends_with_its_context(
    aeron_dir: Path, shm_base: Path, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    with tp.open(aeron_dir=str(aeron_dir), shm_base_dir=shm_base) as ctx:
        source = ctx.producer(free_stream_ids(), pools=["4KiB"])
        running = tp.stage(source.stream_id, np.array, free_stream_ids(), name="orphan").start(ctx)
        wait_until(lambda: source.offer(np.zeros(4)) and source.consumers()[0] > 0, timeout=DEADLINE_S)

    def has_thread() -> bool:
        return any(thread.name.startswith("tp-stage-orphan") for thread in threading.enumerate())

    wait_until(lambda: not has_thread(), timeout=DEADLINE_S)
    running.close()


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
        # Ctrl-C, and what a service manager sends.
        process.send_signal(signal.SIGINT if example == "difference" else signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
