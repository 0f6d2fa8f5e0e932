"""Drivers with a media driver of their own, killed at any moment of their start; the next one starts."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

import tensorpool as tp
from tests.chaos.stage import END_TIMEOUT_S, Program, Stage

SHARE = 1.0
_STARTED = "is ready"


def run(stage: Stage) -> None:
    """`tensorpool driver run` makes two directories, locks and a mark file; a kill may leave any of them."""
    rng, checker = stage.rng, stage.checker
    aeron_dir = stage.aeron_dir.with_name(f"{stage.aeron_dir.name}-starts")
    base = stage.base / "starts"
    base.mkdir()
    log = stage.work / "starts.log"
    try:
        start_s = _start_and_end(stage, aeron_dir, base, log)
        stage.restart_clock()
        while stage.has_time:
            for _ in range(rng.randrange(1, 5)):
                driver = _start(stage, aeron_dir, base, log)
                time.sleep(rng.uniform(0, start_s))
                driver.kill()
                checker.count("driver killed while it started")
            _start_and_end(stage, aeron_dir, base, log)
            checker.count("driver started after a killed one")
    finally:
        for directory in (aeron_dir, base):
            shutil.rmtree(directory, ignore_errors=True)


def _start(stage: Stage, aeron_dir: Path, base: Path, log: Path) -> Program:
    settings = {"aeron.dir": aeron_dir, "aeron.media_driver": "auto", "shm.base_dir": base}
    arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "tensorpool", "driver", "run", "--config", str(stage.config), *arguments]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=file, text=True, start_new_session=True
        )
    return Program("driver", process)


def _start_and_end(stage: Stage, aeron_dir: Path, base: Path, log: Path) -> float:
    """Starts a driver, publishes and receives a frame, and ends it. How long the start took."""
    began = time.monotonic()
    driver = _start(stage, aeron_dir, base, log)
    try:
        while _STARTED not in log.read_text(errors="replace"):
            if driver.process.poll() is not None or time.monotonic() > began + END_TIMEOUT_S:
                stage.checker.expect(
                    False, f"a driver does not start: {log.read_text(errors='replace')[-500:]}"
                )
                return 1.0
            time.sleep(0.01)
        start_s = time.monotonic() - began
        options = {**stage.options, "aeron_dir": str(aeron_dir), "shm_base_dir": str(base)}
        epoch = None
        with (
            contextlib.suppress(tp.TensorPoolError),
            tp.open(**options) as context,
            context.producer(stage.stream_id, pools=["4KiB"]) as producer,
        ):
            epoch = producer.epoch
        stage.checker.expect(epoch is not None, "a driver that started grants no lease")
        return start_s
    finally:
        driver.end()
        status = driver.process.returncode
        stage.checker.expect(status == 0, f"a driver that was asked to end ended with {status}")
