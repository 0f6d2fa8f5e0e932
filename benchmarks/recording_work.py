"""The process that reads and replays recordings: `python -m benchmarks.recording_work MEASUREMENT PLAN`.

The compared functions take turns, so that a slow moment of the machine affects both. Recordings are on a disk
and, because they were just written, in the page cache: neither function waits for the disk. The measurement
is repeated in shared memory, where small pages make every new mapping expensive.
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

from .endpoint_process import exit_with_parent, write_line
from .plan import JsonPlan

STREAM_ID = 10000
SIZE_BYTES = 640 << 10
_STRIDE = 1 << 20
_NSLOTS = 8
_SMALL_BYTES = 64
_SPACED_HZ = 1000


@dataclass(frozen=True, slots=True)
class RecordingPlan(JsonPlan):
    """Plan of one measurement."""

    directory: str
    disk: str
    frames: int
    rounds: int
    spaced_s: float
    segments: tuple[int, ...]


def write_recording(root: Path, frames: int, size_bytes: int, every_ns: int) -> None:
    """Writes a recording of frames that all differ."""
    array = np.random.default_rng(0).integers(0, 256, size_bytes, np.uint8)
    with recording.RecordingWriter(root, background=False) as writer:
        for seq in range(frames):
            array[:8] = np.frombuffer(np.uint64(seq).tobytes(), np.uint8)
            at_ns = 10**18 + seq * every_ns
            writer.append(array, stream_id=STREAM_ID, epoch=1, seq=seq, receive_time_ns=at_ns)


def _alternate(rounds: int, *work: Callable[[], float]) -> list[list[float]]:
    """Seconds of each function by round; a first round warms up."""
    for measure in work:
        measure()
    rows = ([measure() for measure in work] for _ in range(rounds))
    return [list(seconds) for seconds in zip(*rows, strict=True)]


def _on_disk_and_in_memory(
    plan: RecordingPlan, name: str, measure: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Measures on the disk and in shared memory."""
    in_memory = measure(Path(plan.directory, name))
    return measure(Path(plan.disk, name)) | {f"memory_{key}": value for key, value in in_memory.items()}


def _timed(work: Callable[[], None]) -> Callable[[], float]:
    """Times the work until all its objects are released: unmapping a file is a part of reading it."""

    def measured() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return measured


def read(plan: RecordingPlan) -> dict[str, Any]:
    """Measures reading."""
    return _on_disk_and_in_memory(plan, "read", partial(_read, plan))


def _read(plan: RecordingPlan, root: Path) -> dict[str, Any]:
    """Copies every payload, by the reader and from plain mappings of the same files."""
    write_recording(root, plan.frames, SIZE_BYTES, 1_000_000)
    target = np.empty(SIZE_BYTES, np.uint8)
    refs = [frame.ref for frame in recording.open(root).frames(STREAM_ID)]

    def with_reader() -> None:
        with recording.open(root) as recorded:
            for frame in recorded.frames(STREAM_ID):
                np.copyto(target, frame.array)

    def with_plain_mapping() -> None:
        files: dict[os.PathLike[str], Any] = {}
        for ref in refs:
            if ref.path not in files:
                fd = os.open(ref.path, os.O_RDONLY)
                files[ref.path] = np.frombuffer(mmap.mmap(fd, 0, prot=mmap.PROT_READ), np.uint8)
                os.close(fd)
            np.copyto(target, files[ref.path][ref.offset : ref.offset + ref.length])

    ours, plain = _alternate(plan.rounds, _timed(with_reader), _timed(with_plain_mapping))
    return {
        "read_hz": plan.frames / statistics.median(ours),
        "mapped_hz": plan.frames / statistics.median(plain),
        "read_ratio": statistics.median(p / o for o, p in zip(ours, plain, strict=True)),
    }


def replay(plan: RecordingPlan) -> dict[str, Any]:
    """Measures replay at full speed."""
    frames = np.random.default_rng(1).integers(0, 256, (plan.frames, SIZE_BYTES), np.uint8)
    return _on_disk_and_in_memory(plan, "replay", partial(_replay, plan, frames))


def _replay(plan: RecordingPlan, frames: np.ndarray, root: Path) -> dict[str, Any]:
    """Compares a replay at full speed with a producer that offers as many different frames from memory."""
    write_recording(root, plan.frames, SIZE_BYTES, 1_000_000)
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


def spacing(plan: RecordingPlan) -> dict[str, Any]:
    """Measures by how much the spacing of publish timestamps differs from the recorded spacing."""
    root = Path(plan.directory, "spacing")
    count, every_ns = int(plan.spaced_s * _SPACED_HZ), 10**9 // _SPACED_HZ
    write_recording(root, count, 64 << 10, every_ns)
    with _open(plan) as ctx, ctx.consumer(STREAM_ID) as consumer:
        published: list[int] = []
        with ctx.replay(root, nslots=1024, wait=10, linger=0) as playing:
            while len(published) < count:
                consumer.wait(0.01)
                got = [frame.publish_timestamp_ns for frame in consumer.poll(1024)]
                published += [at_ns for at_ns in got if at_ns is not None]
                if not got and playing.wait(0):
                    break
    error_us = np.abs(np.diff(published) - every_ns) / 1e3
    p50, p99 = np.percentile(error_us, [50, 99]).tolist()
    return {"spacing_frames": len(published), "spacing_p50_us": p50, "spacing_p99_us": p99}


def growth(plan: RecordingPlan) -> dict[str, Any]:
    """Measures the time to the first frame of recordings with growing numbers of segments."""
    roots = {}
    for count in plan.segments:
        roots[count] = Path(plan.directory, f"segments-{count}")
        _write_segments(roots[count], count)

    def first(root: Path) -> float:
        began = time.perf_counter()
        with recording.open(root) as recorded:
            recorded.frames(STREAM_ID).first().array.item(0)
        return time.perf_counter() - began

    seconds = _alternate(10 * plan.rounds, *(partial(first, root) for root in roots.values()))
    times = {count: statistics.median(each) * 1e3 for count, each in zip(roots, seconds, strict=True)}
    return {"first_frame_ms": {str(count): ms for count, ms in times.items()}}


def _write_segments(root: Path, count: int) -> None:
    """Writes a recording with `count` segments. All but the first are hard links to it: opening all of them
    would take as long as opening different files."""
    with recording.RecordingWriter(root, background=False) as writer:
        writer.append(np.zeros(_SMALL_BYTES, np.uint8), stream_id=STREAM_ID, epoch=1, seq=0)
    contents = manifest.load(root)
    (first,) = contents.segments
    records = np.repeat(contents.segments, count)
    records["first_seq"] = records["last_seq"] = np.arange(count)
    for number in range(1, count):
        records["crc32c"][number] = manifest.record_checksum(records[number])
        os.link(
            manifest.segment_name(first).sealed(root), manifest.segment_name(records[number]).sealed(root)
        )
    contents.segments = records
    with manifest_store.locked(root):
        manifest_store.compact_locked(root, contents)


def _open(plan: RecordingPlan) -> tp.Context:
    return tp.open("standalone", aeron_dir=f"{plan.directory}/aeron", shm_base_dir=plan.directory)


MEASUREMENTS = {"read": read, "replay": replay, "spacing": spacing, "growth": growth}

if __name__ == "__main__":
    exit_with_parent()
    write_line(json.dumps(MEASUREMENTS[sys.argv[1]](RecordingPlan.from_json(sys.argv[2]))))
