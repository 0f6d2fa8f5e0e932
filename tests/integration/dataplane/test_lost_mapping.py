"""SIGBUS in a process that uses regions: a truncated region is survived, every other fault still ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
    import faulthandler, mmap, os, sys, tempfile, time
    from pathlib import Path
    import numpy as np
    import tensorpool as tp

    aeron_dir, base, when, end = sys.argv[1:]
    base = Path(base)
    if when == "before":
        faulthandler.enable()
    with tp.open(mode="standalone", aeron_dir=aeron_dir, shm_base_dir=base) as context:
        producer = context.producer(4711, nslots=8, pools=["64KiB"])
        consumer = context.consumer(4711)
        frame = None
        while frame is None:
            producer.offer(np.ones(8000))
            frame = consumer.receive_or_none(1)
        view = frame.array
        assert view.all() and frame.valid()
        if when == "after":
            faulthandler.enable()
            context.producer(4712, nslots=1, pools=["64B"])  # a new mapping installs the handler again
        (pool,) = base.glob("tensorpool-*/*/4711/*/1.pool")
        os.truncate(pool, 0)
        assert not view.any(), "a view that is still held reads zeros"
        assert not frame.valid()
        try:
            with frame:
                pass
        except tp.FrameOverwritten as error:
            print(error)
        while producer.offer(np.ones(8000)).outcome == "published":
            pass
        events = []
        while not any(event.kind == "regions_lost" for event in events):
            context.on_event(events.append)
            time.sleep(0.01)
        print("survived", flush=True)
    if end == "fault":
        with tempfile.TemporaryFile() as file:
            file.truncate(4096)
            mapped = mmap.mmap(file.fileno(), 4096)
            file.truncate(0)
            mapped[0]
    elif end == "raise":
        os.kill(os.getpid(), 7)
"""


@pytest.mark.leaves_files("the process ends by a signal")
@pytest.mark.parametrize("when", ["never", "before", "after"])
@pytest.mark.parametrize("end", ["fault", "raise"])
def test_only_a_lost_region_is_survived(aeron_dir: Path, shm_base: Path, when: str, end: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(aeron_dir), str(shm_base), when, end]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "survived" in process.stdout, process.stderr
    assert "pool 1 was truncated" in process.stdout
    assert process.returncode == -signal.SIGBUS, process.stderr
    reports = process.stderr.count("Fatal Python error: Bus error")
    assert reports == (0 if when == "never" else 1), process.stderr
