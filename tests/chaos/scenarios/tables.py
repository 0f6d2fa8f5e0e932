"""A full disk under a pipeline's tables, again and again, with room made in between.

A real Spark, in a process of its own. The recording grows on another disk, with gaps in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

from tests.chaos.stage import NotPossible, Stage, mounted

SHARE = 1.5
_DISK_BYTES = 16 << 20
_ROOMY_BYTES = 512 << 20
# The start of a virtual machine, or of a micro-batch, beside other programs.
_SLOW_S = 240.0


def run(stage: Stage) -> None:
    """Another program fills the disk of the tables. A run then ends with the one error that says so, the next
    one continues, and at the end the tables have what the recording's ledger has."""
    if shutil.which("java") is None:
        raise NotPossible("there is no Java for Spark")
    disk, root = stage.work / "disk", stage.work / "recording"
    with mounted(disk, _DISK_BYTES):
        try:
            _fill_again_and_again(stage, root, disk)
            stage.checker.recording(root)
            _compare(stage, root, disk / "tables")
        finally:
            stage.end_programs()


def _fill_again_and_again(stage: Stage, root: Path, disk: Path) -> None:
    rng, checker, filler = stage.rng, stage.checker, disk / "filler"
    stage.start("producer", hz=200)
    recorder = stage.start("recorder", root=str(root), rotate_bytes=str(1 << 20))
    checker.expect(stage.advances(recorder, "recorded", 50), "nothing is recorded at the start")
    scratch = stage.work / "spark"
    scratch.mkdir()
    pipeline = stage.start(
        "pipeline", recording=str(root), tables=str(disk / "tables"), scratch=str(scratch)
    )  # fmt: skip
    checker.expect(stage.advances(pipeline, "runs", 1, _SLOW_S), "no run of the pipeline ends")
    stage.restart_clock()
    rounds = 0
    while (stage.has_time or rounds < 2) and not pipeline.has_ended:
        rounds += 1
        # So that the ledger has gaps: the ring holds less than this.
        recorder.pause(rng.uniform(0.5, 1.0))
        time.sleep(rng.uniform(0.0, 2.0))
        _fill(filler, rng.randrange(0, 16 << 10))
        checker.count("disk filled")
        checker.expect(
            stage.advances(pipeline, "full", 1, _SLOW_S), f"a run does not notice: {pipeline.counts}"
        )
        filler.unlink()
        checker.count("room made")
        checker.expect(stage.advances(pipeline, "runs", 1, _SLOW_S), f"no run continues: {pipeline.counts}")
        stage.programs_live("beside a full disk of tables")
        # Merged files are kept for a day, so the tables themselves need more and more.
        used = sum(path.stat().st_size for path in disk.rglob("*") if path.is_file())
        _resize(disk, max(_DISK_BYTES, 2 * used))
    _resize(disk, _ROOMY_BYTES)
    stage.end(recorder)
    # The first of these may have begun before the last frame was written.
    checker.expect(stage.advances(pipeline, "runs", 2, _SLOW_S), "no run takes the last frames")
    checker.count("runs of the pipeline that ended well", pipeline.counts.runs)
    checker.count("runs of the pipeline that found the disk full", pipeline.counts.full)
    report = stage.end(pipeline)
    checker.expect(report.get("failures") == [], f"a full disk led to other errors: {report}")


def _fill(filler: Path, spare_bytes: int) -> None:
    """Takes all but a few bytes, if those who write at the same time leave them."""
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    os.truncate(filler, max(0, filler.stat().st_size - spare_bytes))


def _resize(disk: Path, size_bytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size_bytes}", str(disk)], check=True)


def _compare(stage: Stage, root: Path, tables: Path) -> None:
    """Whether frames and gaps of bronze and silver are those of the recording's ledger, each once."""
    from tensorpool import recording

    checker = stage.checker
    rows: Counter[str] = Counter()
    gaps: Counter[str] = Counter()
    for ledger in recording.verify(root).ledgers:
        rows[str(ledger.epoch)] += ledger.rows
        gaps.update({f"{ledger.epoch} {reason}": count for reason, count in ledger.gaps.items()})
    checker.expect(bool(gaps), "the recording has no gaps")
    reader = stage.start("reader", tables=str(tables))
    checker.expect(stage.advances(reader, "runs", 1, _SLOW_S), "the tables cannot be read")
    counts = stage.end(reader)
    for level in ("bronze", "silver"):
        found = counts.get(level, {})
        frames, missing = found.get("frames"), found.get("gaps")
        checker.expect(frames == rows, f"{level}/frames has {frames}, the recording {rows}")
        checker.expect(found.get("distinct") == rows.total(), f"{level}/frames has frames twice: {found}")
        checker.expect(missing == gaps, f"{level}/gaps has {missing}, the recording {gaps}")
        checker.count(f"rows of {level}/frames compared", sum((frames or {}).values()))
        checker.count(f"sequences of {level}/gaps compared", sum((missing or {}).values()))
