"""Datasets of torch with real workers, and the example programs. They use a GPU where there is one.

`make test-gpu` runs these; without torch they are skipped.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp

torch = pytest.importorskip("torch", reason="the datasets need torch")

DEADLINE_S = 60.0
STREAM = 10_001
EXAMPLES = Path(__file__).parents[2] / "examples"
DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def ctx() -> Iterator[tp.Context]:
    with tp.open(mode="embedded") as ctx:
        yield ctx


def _live_items(aeron_dir: str, base: str, workers: int, count: int, max_rate_hz: int | None) -> list[int]:
    import tensorpool.torch as tpt

    dataset = tpt.live(
        STREAM,
        transform=_first_word,
        max_rate_hz=max_rate_hz,
        context={"aeron_dir": aeron_dir, "shm_base_dir": base},
        timeout=DEADLINE_S,
    )
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
    items = []
    for item in loader:
        items.append(int(item))
        if len(items) == count:
            break
    return items


def _first_word(frame: tp.Frame) -> int:
    return int(frame.array[0])


@pytest.mark.parametrize("max_rate_hz", [None, 100], ids=["all", "limited"])
def test_workers_of_a_live_stream_share_no_frame(ctx: tp.Context, max_rate_hz: int | None) -> None:
    """A limit to every second frame leaves frames for each of the workers, which the loader asks in turn."""
    producer = ctx.producer(STREAM, pools=["4KiB"], nslots=64)
    ends = threading.Event()

    def publish() -> None:
        for value in itertools.count():
            if ends.wait(0.005):
                return
            producer.offer(np.array([value]), timestamp_ns=value * 5_000_000)

    camera = threading.Thread(target=publish)
    camera.start()
    try:
        items = _live_items(ctx.aeron_dir, str(ctx.shm_base_dir), 2, 100, max_rate_hz)
    finally:
        ends.set()
        camera.join()
    assert len(set(items)) == len(items) == 100


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_recordings_are_datasets(tmp_path: Any, ctx: tp.Context, method: str) -> None:
    import tensorpool.torch as tpt

    producer = ctx.producer(STREAM, pools=["1MiB"], nslots=64)
    with ctx.record(tmp_path / "run", streams=[STREAM]):
        for value in range(50):
            assert producer.offer(np.full((64, 64), value, np.uint16))
            time.sleep(0.002)
    dataset = tpt.recorded(tmp_path / "run")
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=8, num_workers=2, collate_fn=tpt.collate, multiprocessing_context=method
    )
    values = [int(row[0, 0]) for batch in loader for row in batch]
    assert values == sorted(values)
    assert len(values) == len(dataset) > 40
    assert dataset[-1][0, 0] == values[-1]


@pytest.fixture
def start(tmp_path: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python programs that share a system of their own; `examples/find/camera.py` runs in it."""
    private = Path(f"/dev/shm/tensorpool-tutorial-{os.getpid()}-{secrets.token_hex(4)}")
    environment = {
        **os.environ,
        "AERON_DIR": str(private / "aeron"),
        "TENSORPOOL_SHM__BASE_DIR": str(private / "shm"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        # JAX takes three quarters of the GPU's memory at its start, of which torch may have some.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    (private / "shm").mkdir(parents=True, mode=0o700)

    def start(*command: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *map(str, command)], env=environment, stdout=subprocess.PIPE, text=True
        )

    camera = start(EXAMPLES / "find" / "camera.py")
    try:
        yield start
    finally:
        camera.send_signal(signal.SIGINT)
        camera.communicate(timeout=60)
        shutil.rmtree(private)


def test_the_tutorials_model_runs_on_a_live_camera_and_on_a_recording(tmp_path: Any, start: Any) -> None:
    model = EXAMPLES / "model" / "model.py"
    shown, _ = start(model, "--frames", 100).communicate(timeout=120)
    assert f"on {DEVICE}: capture to result" in shown
    print(shown)
    record = ("record", "--out", tmp_path / "run", "--stream", 20000, "--frames", 40)
    start("-m", "tensorpool", *record).communicate(timeout=120)
    shown, _ = start(model, "--recording", tmp_path / "run").communicate(timeout=120)
    assert "batch 0: 16 frames" in shown


@pytest.mark.parametrize(
    ("library", "program", "line"),
    [
        ("jax", "tiles.py", r"frame (\d+) on gpu: brightest tile (\d+)\.0"),
        ("cupy", "motion.py", r"frame (\d+) on cuda:0: changed by up to (\d+)\.\d"),
    ],
)
def test_the_program_of_another_library_runs_on_the_gpu(
    start: Any, library: str, program: str, line: str
) -> None:
    if DEVICE == "cpu":
        pytest.skip("this machine has no GPU")
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    process = start(EXAMPLES / library / program, "--frames", 60)
    shown, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    values = [(int(match[1]), int(match[2])) for match in re.finditer(line, shown)]
    print(shown)
    assert len(values) == 2
    for seq, value in values:
        # Images are full of their sequence. Against its running mean each is brighter by 12 and more.
        assert value == seq % 4096 if library == "jax" else value >= 12
