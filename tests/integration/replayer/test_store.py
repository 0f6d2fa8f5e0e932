"""A recorder process that archives what it records, and a replay of the archive without the local files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests.integration.storage.recordings import contents
from tests.s3_server import S3Server

from .conftest import OpenCollector, image

pytestmark = pytest.mark.timeout(600)

FRAMES = 60
RECORDER = [sys.executable, "-m", "tensorpool", "record"]


def test_recorded_frames_are_archived_and_replayed_from_the_store(
    ctx: tp.Context,
    root: Path,
    s3_server: S3Server,
    open_collector: OpenCollector,
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    uri = s3_server.uri("camera")
    command = [
        *RECORDER, "--stream", str(free_stream_id), "--frames", str(FRAMES), "--out", str(root),
        "--archive", uri, "--aeron-dir", str(ctx.aeron_dir),
    ]  # fmt: skip
    with (
        ctx.producer(free_stream_id, nslots=256) as producer,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as recorder,
    ):
        try:
            wait_until(lambda: recorder.poll() is not None or producer.consumers()[0] >= 1, timeout=120)
            for seq in range(FRAMES):
                producer.offer(image(free_stream_id, seq))
            _, errors = recorder.communicate(timeout=300)
        finally:
            recorder.kill()
    assert recorder.returncode == 0, errors.decode()
    # It ends when the last segment is archived: nothing is left to push.
    assert contents(uri) == contents(root)
    recorded = contents(root)["frames"][free_stream_id]
    assert len(recorded) == FRAMES
    shutil.rmtree(root)
    collector = open_collector(free_stream_id)
    with ctx.replay(uri, speed="max", nslots=256, wait=120.0, linger=0.0) as replay:
        received = collector.until(FRAMES)
        assert replay.wait(120)
        assert replay.stats().frames == FRAMES
    for frame, (_, seq, *_, payload) in zip(received, recorded, strict=True):
        assert np.array_equal(frame.array, image(free_stream_id, seq))
        assert frame.array.tobytes() == payload
