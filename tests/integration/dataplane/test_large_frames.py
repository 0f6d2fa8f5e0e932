"""Frames beyond the caches: copied by other routines and by two threads, on pages that are there."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.doctor.memory import read_last_level_cache
from tensorpool.errors import ConfigError
from tests.integration.dataplane.conftest import Stream
from tests.remote_process import RemoteProcess

DEADLINE_S = 60.0
MIB = 1 << 20
MAX_RING_BYTES = 256 * MIB
Connect = Callable[..., Stream]


def slots_beyond_the_cache() -> int:
    """Slots of 1 MiB that exceed the last-level cache, which are written past it."""
    cache_bytes = read_last_level_cache()
    if cache_bytes is None or cache_bytes >= MAX_RING_BYTES:
        pytest.skip("the last-level cache is not known, or too large for a test")
    return 1 << (cache_bytes // MIB).bit_length()


def assert_frames_are_whole(stream: Stream, nslots: int) -> None:
    """Reads frames of equal elements while the producer laps the reader: each that counts is of one offer."""
    stop = threading.Event()

    def produce() -> None:
        for value in itertools.count():
            if stop.is_set():
                return
            stream.producer.offer(np.full(MIB // 8, value))

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        whole = overwritten = 0
        deadline = time.monotonic() + DEADLINE_S
        while whole < 50 or overwritten < 5:
            assert time.monotonic() < deadline, (whole, overwritten)
            frame = stream.consumer.receive(DEADLINE_S)
            # Every other frame is read while its slot is written again, sooner or later.
            if whole > overwritten:
                time.sleep(nslots * 0.0002)
            array = frame.array
            is_whole = bool((array == array[0]).all())
            if frame.valid():
                assert is_whole
                whole += 1
            else:
                overwritten += 1
    finally:
        stop.set()
        producer.join()


@pytest.mark.parametrize("copy_threads", [1, 2])
def test_large_frames_are_whole_in_a_small_ring(connect: Connect, copy_threads: int) -> None:
    if copy_threads > len(os.sched_getaffinity(0)):
        pytest.skip("one core")
    assert_frames_are_whole(connect(nslots=2, pools=["1MiB"], copy_threads=copy_threads), 2)


@pytest.mark.parametrize("copy_threads", [1, 2])
def test_large_frames_are_whole_in_a_ring_beyond_the_cache(connect: Connect, copy_threads: int) -> None:
    if copy_threads > len(os.sched_getaffinity(0)):
        pytest.skip("one core")
    nslots = slots_beyond_the_cache()
    assert_frames_are_whole(connect(nslots=nslots, pools=["1MiB"], copy_threads=copy_threads), nslots)


def test_copy_threads_are_refused_where_there_is_one_core(
    open_context: Callable[..., tp.Context], monkeypatch: pytest.MonkeyPatch, free_stream_id: int
) -> None:
    context = open_context()
    with pytest.raises(ConfigError, match="copy_threads 3: use 1, or 2"):
        context.producer(free_stream_id, copy_threads=3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    with pytest.raises(ConfigError, match=r"one core.*use copy_threads=1"):
        context.producer(free_stream_id, copy_threads=2)


def test_copy_thread_ends_with_its_producer(connect: Connect, wait_until: Callable[..., object]) -> None:
    def copy_threads() -> int:
        names = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]
        return names.count("tp-copy\n")

    stream = connect(nslots=2, pools=["1MiB"], copy_threads=2)
    assert copy_threads() == 1
    stream.producer.close()
    del stream
    wait_until(lambda: copy_threads() == 0, timeout=DEADLINE_S)


def mapped_kib(pool: Path, permissions: str, field: str) -> list[int]:
    """A field of the mappings of a file with these permissions, by /proc/self/smaps."""
    figures, is_meant = [], False
    with open("/proc/self/smaps", encoding="utf-8") as lines:
        for line in lines:
            name, *rest = line.split()
            if not name.endswith(":"):
                is_meant = rest[0] == permissions and line.rstrip().endswith(str(pool))
            elif is_meant and name == f"{field}:":
                figures.append(int(rest[0]))
    return figures


def test_consumers_map_every_page_before_the_first_frame(
    connect: Connect, shm_base: Path, wait_until: Callable[..., object]
) -> None:
    """Nothing was published, so no page of the consumer's mapping was touched by a frame."""
    stream = connect(nslots=4, pools=["1MiB"])
    wait_until(lambda: stream.consumer.epoch is not None, timeout=DEADLINE_S)
    (pool,) = shm_base.glob("**/*.pool")
    sizes = mapped_kib(pool, "r--s", "Size")
    assert sizes
    assert mapped_kib(pool, "r--s", "Rss") == sizes


class HugePageStream:
    """A standalone stream on a filesystem of its own."""

    def __init__(self, base: str, aeron_dir: str) -> None:
        self.base = base
        self.context = tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=base)
        self.producer = self.context.producer(10_000, nslots=4, pools=["2MiB"])

    def huge_kib(self) -> int:
        """Memory of the producer's pool that is mapped by huge pages."""
        (pool,) = Path(self.base).glob("**/*.pool")
        return sum(mapped_kib(pool, "rw-s", "ShmemPmdMapped"))

    def close(self) -> None:
        """Ends in order."""
        self.context.close()


@pytest.mark.parametrize("huge", ["never", "advise"])
def test_regions_use_huge_pages_where_the_filesystem_allows_them(
    huge: str, tmp_path: Path, aeron_dir: Path
) -> None:
    base = tmp_path / "shm"
    base.mkdir()
    # The mount is seen by these processes only, and ends with them.
    mount = f"mount -t tmpfs -o size=64m,huge={huge} tmpfs {base}"
    private = ["unshare", "--mount", "sh", "-c"]
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a mount needs root and unshare")
    if subprocess.run([*private, mount], capture_output=True, check=False).returncode:
        pytest.skip("this system has no tmpfs with huge pages")
    prefix = (*private, f'{mount} && exec "$@"', "sh")
    with RemoteProcess(HugePageStream, str(base), str(aeron_dir), prefix=prefix) as stream:
        # The first and the last page hold the superblock and the end of a region: they may be small ones.
        huge_kib = stream.call("huge_kib")
        assert huge_kib >= 4096 if huge == "advise" else huge_kib == 0
        stream.call("close")
