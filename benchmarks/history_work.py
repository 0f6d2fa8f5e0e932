"""Reading and replaying, measured: `python -m benchmarks.history_work WHAT PLAN`, in a process of its own.

What is compared takes turns, so that whatever slows the machine slows both. Recordings lie on the disk, as
they do in life, and in the page cache, since they were just written: neither side waits for the disk. The
same is measured in shared memory, whose small pages make every fresh mapping dear.
"""

from __future__ import annotations

import json
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tensorpool as tp
from tensorpool import recording
from tensorpool.recording import manifest, manifest_store

from .plan_text import PlanText
from .role import obey_the_parent, say

STREAM_ID = 10000
SIZE_BYTES = 640 << 10
_STRIDE = 1 << 20
_NSLOTS = 8
_SMALL_BYTES = 64
_SPACED_HZ = 1000


@dataclass(frozen=True, slots=True)
class Plan(PlanText):
    directory: str
    disk: str
    frames: int
    rounds: int
    spaced_s: float
    segments: tuple[int, ...]


def make(root: Path, frames: int, size_bytes: int, every_ns: int) -> None:
    """A recording of frames that are all different."""
    array = np.random.default_rng(0).integers(0, 256, size_bytes, np.uint8)
    with recording.RecordingWriter(root, background=False) as writer:
        for seq in range(frames):
            array[:8] = np.frombuffer(np.uint64(seq).tobytes(), np.uint8)
            at_ns = 10**18 + seq * every_ns
            writer.append(array, stream_id=STREAM_ID, epoch=1, seq=seq, receive_time_ns=at_ns)


def _alternate(rounds: int, *work: Callable[[], float]) -> list[list[float]]:
    """Seconds of each, over the rounds; the first round only warms up."""
    for one in work:
        one()
    return [list(row) for row in zip(*([one() for one in work] for _ in range(rounds)), strict=True)]


def _everywhere(plan: Plan, name: str, measure: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """On the disk, and in shared memory."""
    in_memory = measure(Path(plan.directory, name))
    return measure(Path(plan.disk, name)) | {f"memory_{key}": value for key, value in in_memory.items()}


def _timed(work: Callable[[], None]) -> Callable[[], float]:
    """Until everything it held is let go of: to unmap a file is a part of reading it."""

    def measured() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return measured


def read(plan: Plan) -> dict[str, Any]:
    return _everywhere(plan, "read", partial(_read, plan))


def _read(plan: Plan, root: Path) -> dict[str, Any]:
    """Every payload copied out: by the reader, and from the plain mapping of the same files."""
    make(root, plan.frames, SIZE_BYTES, 1_000_000)
    target = np.empty(SIZE_BYTES, np.uint8)
    refs = [frame.ref for frame in recording.open(root).frames(STREAM_ID)]

    def by_the_reader() -> None:
        with recording.open(root) as recorded:
            for frame in recorded.frames(STREAM_ID):
                np.copyto(target, frame.array)

    def by_hand() -> None:
        files: dict[Path, Any] = {}
        for ref in refs:
            if ref.path not in files:
                fd = os.open(ref.path, os.O_RDONLY)
                files[ref.path] = np.frombuffer(mmap.mmap(fd, 0, prot=mmap.PROT_READ), np.uint8)
                os.close(fd)
            np.copyto(target, files[ref.path][ref.offset : ref.offset + ref.length])

    ours, plain = _alternate(plan.rounds, _timed(by_the_reader), _timed(by_hand))
    return {
        "read_hz": plan.frames / statistics.median(ours),
        "mapped_hz": plan.frames / statistics.median(plain),
        "read_ratio": statistics.median(p / o for o, p in zip(ours, plain, strict=True)),
    }


def replay(plan: Plan) -> dict[str, Any]:
    frames = np.random.default_rng(1).integers(0, 256, (plan.frames, SIZE_BYTES), np.uint8)
    return _everywhere(plan, "replay", partial(_replay, plan, frames))


def _replay(plan: Plan, frames: np.ndarray, root: Path) -> dict[str, Any]:
    """A replay at full speed, and a producer that offers as many different frames out of memory."""
    make(root, plan.frames, SIZE_BYTES, 1_000_000)
    with _open(plan) as ctx:

        def offer(sources: np.ndarray) -> float:
            with ctx.producer(STREAM_ID, pools=[_STRIDE], nslots=_NSLOTS) as producer:
                began = time.perf_counter()
                for number in range(plan.frames):
                    producer.offer(sources[number % len(sources)])
                return time.perf_counter() - began

        def play() -> float:
            with ctx.replay(root, speed="max", nslots=_NSLOTS, linger=0, paused=True) as playing:
                began = time.perf_counter()
                playing.resume()
                playing.wait()
                elapsed = time.perf_counter() - began
                assert playing.stats().frames == plan.frames
                return elapsed

        played, offered, same = _alternate(
            plan.rounds, play, lambda: offer(frames), lambda: offer(frames[:1])
        )
    return {
        "replay_hz": plan.frames / statistics.median(played),
        "offer_hz": plan.frames / statistics.median(offered),
        "offer_same_hz": plan.frames / statistics.median(same),
        "replay_ratio": statistics.median(o / p for p, o in zip(played, offered, strict=True)),
    }


def spacing(plan: Plan) -> dict[str, Any]:
    """How far the distance of two frames is from the recorded one, by the times of publication."""
    root = Path(plan.directory, "spacing")
    count, every_ns = int(plan.spaced_s * _SPACED_HZ), 10**9 // _SPACED_HZ
    make(root, count, 64 << 10, every_ns)
    with _open(plan) as ctx, ctx.consumer(STREAM_ID) as consumer:
        published: list[int] = []
        with ctx.replay(root, nslots=1024, wait=10, linger=0) as playing:
            while len(published) < count:
                consumer.wait(0.01)
                got = [frame.publish_timestamp_ns for frame in consumer.poll(1024)]
                published += [at_ns for at_ns in got if at_ns is not None]
                if not got and playing.wait(0):
                    break
    off_us = np.abs(np.diff(published) - every_ns) / 1e3
    p50, p99 = np.percentile(off_us, [50, 99]).tolist()
    return {"spacing_frames": len(published), "spacing_p50_us": p50, "spacing_p99_us": p99}


def growth(plan: Plan) -> dict[str, Any]:
    """Opening, and the first frame, of recordings with more and more segments."""
    roots = {}
    for count in plan.segments:
        roots[count] = Path(plan.directory, f"segments-{count}")
        _many_segments(roots[count], count)

    def first(root: Path) -> float:
        began = time.perf_counter()
        with recording.open(root) as recorded:
            recorded.frames(STREAM_ID).first().array.item(0)
        return time.perf_counter() - began

    looks = [lambda root=root: first(root) for root in roots.values()]
    found = _alternate(10 * plan.rounds, *looks)
    times = {count: statistics.median(each) * 1e3 for count, each in zip(roots, found, strict=True)}
    return {"first_frame_ms": {str(count): ms for count, ms in times.items()}}


def _many_segments(root: Path, count: int) -> None:
    """What a recorder leaves after `count` rotations. The files behind the first are further names of it:
    whoever opened them all would take as long as with files of their own."""
    with recording.RecordingWriter(root, background=False) as writer:
        writer.append(np.zeros(_SMALL_BYTES, np.uint8), stream_id=STREAM_ID, epoch=1, seq=0)
    found = manifest.load(root)
    (first,) = found.segments
    records = np.repeat(found.segments, count)
    records["first_seq"] = records["last_seq"] = np.arange(count)
    for number in range(1, count):
        records["crc32c"][number] = manifest.record_checksum(records[number])
        os.link(
            manifest.segment_name(first).sealed(root), manifest.segment_name(records[number]).sealed(root)
        )
    found.segments = records
    with manifest_store.locked(root):
        manifest_store.compact_locked(root, found)


def _open(plan: Plan) -> tp.Context:
    return tp.open("standalone", aeron_dir=f"{plan.directory}/aeron", shm_base_dir=plan.directory)


WHAT = {"read": read, "replay": replay, "spacing": spacing, "growth": growth}

if __name__ == "__main__":
    obey_the_parent()
    say(json.dumps(WHAT[sys.argv[1]](Plan.from_json(sys.argv[2]))))
