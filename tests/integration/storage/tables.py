"""A pipeline's process that tests kill, and the comparison of its tables with the recording.

`python -m tests.integration.storage.tables write DEFINITION` takes all recorded frames into the tables,
without Spark: tasks run in the process itself. `… check DEFINITION` compares every table with the recording.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tensorpool import recording
from tensorpool.errors import PipelineError
from tensorpool.pipeline import load, marker, report
from tensorpool.pipeline.definition import PipelineSettings
from tensorpool.pipeline.engine import Engine, tables_of
from tensorpool.pipeline.tasks import LocalTasks
from tests.unit.pipeline.harness import record

REPOSITORY = Path(__file__).parents[3]
OVERTAKEN = 3
"""The exit status of a process that another one has overtaken."""
LEFT = 10
"""The first stream of a pipeline's recording; the second is the next one."""
Key = tuple[int, int, int]
"""Stream, epoch, sequence."""


def write_definition(
    file: Path,
    root: Path,
    out: str,
    *,
    max_rows: int,
    is_local: bool,
    name: str | None = None,
    left: int = LEFT,
) -> None:
    """A definition with every kind of table, of two streams; payloads are in the tables."""
    text = (
        f'[pipeline]\nrecordings = ["{root}"]\nout = "{out}"\nmax_rows = {max_rows}\npayload = "inline"\n'
        f"{'' if name is None else f'name = {name!r}'}\n"
        # Files are merged while the pipeline runs, as often as it can be set.
        'compact = "always"\ntarget_file = "256KiB"\n'
        '[pipeline.quality]\ninterval = "500ms"\nlateness = "100ms"\n'
        f'[[pipeline.alignments]]\nname = "stereo"\nstreams = [{left}, {left + 1}]\ntolerance = "1ms"\n'
        '[[pipeline.functions]]\nname = "looks"\nfunction = "numpy:mean"\ncolumns = "mean double"\n'
    )
    if is_local:
        text += '[[pipeline.functions]]\nname = "roots"\nfunction = "numpy:sqrt"\noutput = "recording"\n'
    file.write_text(text)


def record_more(root: Path, first: int, count: int, left: int = LEFT) -> int:
    """Records further frames of both streams, of which the second has gaps. Returns the next sequence."""
    seqs = range(first, first + count)
    record(root, seqs, stream_id=left, trace=9000)
    record(root, [seq for seq in seqs if seq % 7 != 3], stream_id=left + 1, shift_ns=1000)
    return first + count


def start(command: str, *definitions: Path, **more: Any) -> subprocess.Popen[str]:
    """Starts a command of this module as a process, in a session of its own."""
    path = os.pathsep.join([str(REPOSITORY / "python"), str(REPOSITORY)])
    return subprocess.Popen(
        [sys.executable, "-m", __name__, command, *map(str, definitions)],
        cwd=definitions[0].parent,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **more,
    )


def check(*definitions: Path) -> str:
    """Compares the tables with the recordings, in a process of its own. Returns what it has counted."""
    process = start("check", *definitions)
    printed, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-8000:]
    return printed.strip()


# --- the processes


def _write(settings: PipelineSettings) -> None:
    begun = marker.begin(settings, tables_of(settings))
    engine = Engine(settings, pipeline_id=begun.pipeline_id)
    engine.log.mark_active()
    engine.recover()
    engine.fix_end()
    print("running", flush=True)
    try:
        while engine.run_batch(LocalTasks()):
            pass
        engine.close()
    finally:
        engine.close_sources()
    engine.log.mark_ended()


def _rows(settings: PipelineSettings, name: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a table that are of the pipeline's own streams: another one may write to it as well."""
    uri = f"{settings.out}/{name}"
    if not DeltaTable.is_deltatable(uri):
        return []
    rows: list[dict[str, Any]] = DeltaTable(uri).to_pyarrow_table(columns=columns).to_pylist()
    # A row of an alignment has the streams in its frames.
    return [
        row
        for row in rows
        if (row if "stream_id" in row else row["frames"][0])["stream_id"] in settings.alignments[0].streams
    ]


def _keys(rows: list[dict[str, Any]]) -> list[Key]:
    return sorted((row["stream_id"], row["epoch"], row["seq"]) for row in rows)


def _equal(name: str, found: list[Any], wanted: list[Any]) -> None:
    """Says what is missing and what is there twice, instead of thousands of rows."""
    more, less = Counter(found) - Counter(wanted), Counter(wanted) - Counter(found)
    assert not more, f"{name}: too much: {sorted(more.items())[:20]}"
    assert not less, f"{name}: missing: {sorted(less.items())[:20]}"


def _check(settings: PipelineSettings) -> None:
    payloads: dict[Key, bytes] = {}
    missing: Counter[int] = Counter()
    with recording.open(settings.recordings[0]) as opened:
        for stream in opened.streams:
            for frame in opened.frames(stream):
                payloads[int(stream), frame.epoch, frame.seq] = frame.verify().array.tobytes()
            missing[int(stream)] = sum(gap.count for gap in opened.gaps(stream))
    wanted = sorted(payloads)
    left, right = settings.alignments[0].streams
    for name in ("bronze/frames", "silver/frames"):
        rows = _rows(settings, name, ["stream_id", "epoch", "seq", "payload"])
        _equal(name, _keys(rows), wanted)
        for row in rows:
            key = row["stream_id"], row["epoch"], row["seq"]
            assert row["payload"] == payloads[key], f"{name}: other bytes in {key}"
    for name in ("gold/statistics", "gold/looks"):
        _equal(name, _keys(_rows(settings, name)), wanted)
    assert _rows(settings, "silver/rejects") == []
    gaps: list[Key] = []
    for row in _rows(settings, "silver/gaps"):
        gaps += [(row["stream_id"], row["epoch"], row["first_seq"] + more) for more in range(row["count"])]
    _equal("silver/gaps", gaps, sorted(set(gaps)))
    assert Counter(stream for stream, _, _ in gaps) == +missing
    # Each frame of the driving stream is in a set, or has a reason why it is not.
    sets = _rows(settings, "silver/aligned/stereo")
    alone = [row for row in _rows(settings, "silver/unaligned/stereo") if row["reason"] != "late"]
    settled = [row["frames"][0]["seq"] for row in sets] + [row["seq"] for row in alone]
    _equal("silver/aligned/stereo", settled, [seq for stream, _, seq in wanted if stream == left])
    assert all(row["frames"][0]["seq"] == row["frames"][1]["seq"] for row in sets)
    quality = _rows(settings, "gold/quality") + _rows(settings, "gold/quality_open")
    intervals = [(row["stream_id"], row["interval_start_ns"]) for row in quality]
    _equal("gold/quality", intervals, sorted(set(intervals)))
    for stream in (left, right):
        own = [row for row in quality if row["stream_id"] == stream]
        sums = sum(row["frames"] for row in own), sum(row["dropped"] for row in own)
        assert sums == (sum(key[0] == stream for key in wanted), missing[stream]), f"gold/quality: {stream}"
    if "://" not in settings.out:
        with recording.open(Path(settings.out) / "derived" / "roots") as opened:
            found = [(int(s), f.verify().epoch, f.seq) for s in (left, right) for f in opened.frames(s)]
        _equal("derived/roots", sorted(found), wanted)
    # The tool of users finds the same: no table differs from another, or from the ledger.
    assert report.collect(settings.out, samples=0).faults == []
    print(f"{len(wanted)} frames, {sum(missing.values())} missing, {len(sets)} sets", flush=True)


def main() -> None:
    pa.set_io_thread_count(1)
    pa.set_cpu_count(1)
    command, definitions = sys.argv[1], [load(Path(file)) for file in sys.argv[2:]]
    if command == "check":
        for definition in definitions:
            _check(definition)
        return
    try:
        _write(definitions[0])
    except PipelineError as error:
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(OVERTAKEN if "in the meantime" in str(error) else 1) from None


if __name__ == "__main__":
    main()
