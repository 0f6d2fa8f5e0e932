"""The sink of a recording: each batch of a query is recorded once, despite crashes and repetitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from tensorpool import _native, recording
from tensorpool.errors import ConfigError, InvalidFrames, LockHeld, NotARecording
from tensorpool.spark import commit as committing
from tensorpool.spark.commit import commit
from tensorpool.spark.options import STREAM_WRITE, WRITE, Options
from tensorpool.spark.sink import make_writer
from tensorpool.spark.staging import SINKS_DIR, check_incoming, incoming_frames, stage
from tests.unit.spark.conftest import STREAM_ID, batch_reader, tensor, write

KEY = "0d8a-query"


def rows(seqs: Any, **columns: Any) -> Iterator[pa.RecordBatch]:
    defaults = {
        "stream_id": [STREAM_ID for _ in seqs],
        "epoch": [1 for _ in seqs],
        "seq": list(seqs),
        "dtype": ["uint16" for _ in seqs],
        "shape": [[4, 8] for _ in seqs],
        "payload": [tensor(seq).tobytes() for seq in seqs],
    }
    yield pa.RecordBatch.from_pydict(
        {name: values for name, values in (defaults | columns).items() if values is not None}
    )


def staged(target: Path, batch: int, *tasks: Any, **given: Any) -> list[str]:
    options = Options({"path": str(target), **given}, STREAM_WRITE)
    recording.RecordingWriter(target, background=False).close()
    return [
        stage(target, KEY, batch, number, incoming_frames(task, options))[0]
        for number, task in enumerate(tasks)
    ]


def put(target: Path, batch: int, *tasks: Any, epoch: int | None = None, **given: Any) -> int:
    return commit(target, KEY, batch, staged(target, batch, *tasks, **given), epoch=epoch, busy_ns=0)


def recorded(target: Path, stream_id: int = STREAM_ID) -> list[tuple[int, int]]:
    """Epoch and sequence of every frame, each verified."""
    found = []
    for frame in recording.open(target).frames(stream_id):
        assert frame.valid()
        found.append((frame.epoch, frame.seq))
    return found


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "sink"


def test_rows_of_any_order_and_task_become_one_stream(target: Path) -> None:
    assert put(target, 0, rows([4, 1, 3]), rows([0, 2]), rows([])) == 5
    assert recorded(target) == [(1, seq) for seq in range(5)]
    for frame in recording.open(target).frames(STREAM_ID):
        assert np.array_equal(frame.array, tensor(frame.seq))
    assert put(target, 1, rows([5, 6])) == 2
    assert len(recorded(target)) == 7
    assert recording.verify(target).ok
    left = [path.name for path in (target / SINKS_DIR / KEY).iterdir()]
    assert left == ["state.json"], "no staged rows are left"


def test_repeated_batch_is_not_written_again(target: Path) -> None:
    put(target, 7, rows(range(5)))
    assert put(target, 7, rows(range(5))) == 0
    assert put(target, 6, rows(range(5))) == 0
    assert recorded(target) == [(1, seq) for seq in range(5)]


def test_commit_waits_for_a_running_commit(target: Path) -> None:
    put(target, 0, rows([0]))
    names = staged(target, 1, rows([1]))
    lock = _native.FileLock(target / SINKS_DIR / KEY / "commit.lock", "an old Spark")
    with pytest.raises(LockHeld, match="an old Spark"):
        commit(target, KEY, 1, names, epoch=None, busy_ns=200_000_000)
    lock.release()
    assert commit(target, KEY, 1, names, epoch=None, busy_ns=0) == 1
    assert recorded(target) == [(1, 0), (1, 1)]


class Killed(BaseException):
    """Stands for a kill: no code of the package catches it."""


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 12), st.booleans(), st.booleans())
def test_crash_anywhere_in_a_commit_leaves_every_row_once(after: int, numbered: bool, is_late: bool) -> None:
    import tempfile

    columns: dict[str, Any] = {} if not numbered else {"seq": None, "epoch": None}
    given_: dict[str, Any] = {} if not numbered else {"stream": str(STREAM_ID)}
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        target = Path(directory, "sink")
        put(target, 0, rows(range(3), **columns), **given_)
        patch.setattr(committing, "_BATCH_ROWS", 1)
        written = recording.RecordingWriter.write_batch
        left = [after]

        def write_batch(self: recording.RecordingWriter, frames: Any, gaps: Any = ()) -> None:
            if left[0] == 0 and not is_late:
                raise Killed
            written(self, frames, gaps)
            left[0] -= 1
            if left[0] == 0 and is_late:
                raise Killed

        patch.setattr(recording.RecordingWriter, "write_batch", write_batch)
        tasks = [rows(range(3, 8), **columns), rows(range(8, 13), **columns)]
        try:
            put(target, 1, *tasks, **given_)
        except Killed:
            patch.setattr(recording.RecordingWriter, "write_batch", written)
            again = [rows(range(3, 8), **columns), rows(range(8, 13), **columns)]
            put(target, 1, *again, **given_)
        assert recorded(target) == [(1, seq) for seq in range(13)]
        for frame in recording.open(target).frames(STREAM_ID):
            assert np.array_equal(frame.array, tensor(frame.seq))


def interrupted(target: Path, after: int, *tasks: Any, **given_: Any) -> None:
    """A commit of batch 1 that is interrupted after a number of frames."""
    written = recording.RecordingWriter.write_batch
    left = [after]

    def write_batch(self: recording.RecordingWriter, frames: Any, gaps: Any = ()) -> None:
        if left[0] == 0:
            raise Killed
        written(self, frames, gaps)
        left[0] -= 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committing, "_BATCH_ROWS", 1)
        patch.setattr(recording.RecordingWriter, "write_batch", write_batch)
        with pytest.raises(Killed):
            put(target, 1, *tasks, **given_)


def payloads_of(target: Path) -> list[bytes]:
    return [frame.payload.tobytes() for frame in recording.open(target).frames(STREAM_ID)]


@pytest.mark.parametrize("after", [0, 2, 5])
def test_recovery_ignores_frames_of_another_query(target: Path, after: int) -> None:
    plain: dict[str, Any] = {"seq": None, "epoch": None}
    stream = str(STREAM_ID)
    put(target, 0, rows(range(3), **plain), stream=stream)
    interrupted(target, after, rows(range(3, 9), **plain), stream=stream)
    options = Options({"path": str(target), "stream": stream}, STREAM_WRITE)
    name, _ = stage(target, "another-query", 0, 0, incoming_frames(rows(range(90, 96), **plain), options))
    commit(target, "another-query", 0, [name], epoch=None, busy_ns=0)
    # Spark may pass the rows in another order than the first time.
    put(target, 1, rows([8, 3, 7], **plain), rows([4, 6, 5], **plain), stream=stream)
    assert sorted(payloads_of(target)) == sorted(tensor(seq).tobytes() for seq in (*range(9), *range(90, 96)))
    assert [seq for _, seq in recorded(target)] == list(range(15))


def test_rows_behind_the_end_of_the_stream_are_rejected(target: Path) -> None:
    put(target, 0, rows(range(3)))
    interrupted(target, 2, rows(range(3, 9)))
    with recording.RecordingWriter(target, background=False) as writer:
        writer.append(tensor(99), stream_id=STREAM_ID, epoch=1, seq=5)
    with pytest.raises(InvalidFrames, match="frame 5 of epoch 1 comes after frame 5"):
        put(target, 1, rows(range(3, 9)))
    assert [seq for _, seq in recorded(target)] == list(range(6))


def test_rows_without_numbers_continue_the_stream(target: Path) -> None:
    plain = {"seq": None, "epoch": None, "stream_id": None, "dtype": None, "shape": None}
    put(target, 0, rows(range(3), **plain), rows(range(3, 5), **plain), stream="9")
    put(target, 1, rows(range(5, 7), **plain), stream="9")
    assert recorded(target, 9) == [(1, seq) for seq in range(7)]
    frame = recording.open(target).frame(9, 4)
    assert (frame.element_type, frame.shape) == ("uint8", (64,))
    assert frame.payload.tobytes() == tensor(4).tobytes()
    put(target, 2, rows(range(2), **plain), stream="9", epoch=3)
    assert recorded(target, 9)[-2:] == [(3, 0), (3, 1)]


def test_rows_by_reference_are_copied_from_their_segments(root: Path, target: Path) -> None:
    write(root, range(20), shape=(3, 5))
    reader = batch_reader(root)
    batches = (batch for one in reader.partitions() for batch in reader.read(one))
    assert put(target, 0, (batch.slice(2, 5) for batch in batches)) == 5
    assert recorded(target) == [(1, seq) for seq in range(2, 7)]
    original, copy = recording.open(root).frame(STREAM_ID, 4), recording.open(target).frame(STREAM_ID, 4)
    assert copy.payload.tobytes() == original.payload.tobytes()
    assert (copy.receive_time_ns, copy.timestamp_ns) == (original.receive_time_ns, original.timestamp_ns)


def test_commit_rejects_earlier_and_duplicate_frames(target: Path) -> None:
    put(target, 0, rows([5, 6]))
    with pytest.raises(InvalidFrames, match="frame 3 of epoch 1 comes after frame 6"):
        put(target, 1, rows([3, 8]))
    with pytest.raises(InvalidFrames, match="frame 9 occurs twice"):
        put(target, 2, rows([9]), rows([9]))
    assert recorded(target) == [(1, 5), (1, 6)]


def test_commit_waits_for_the_lock_of_a_stream(target: Path) -> None:
    names = staged(target, 0, rows([1]))
    with recording.RecordingWriter(target, background=False, holder="recorder") as writer:
        writer.append(tensor(0), stream_id=STREAM_ID, epoch=1, seq=0)
        with pytest.raises(LockHeld, match="recorder"):
            commit(target, KEY, 0, names, epoch=None, busy_ns=200_000_000)
    assert commit(target, KEY, 0, names, epoch=None, busy_ns=0) == 1


def struct(**kinds: Any) -> StructType:
    schema = StructType()
    for name, kind in kinds.items():
        schema = schema.add(name, kind)
    return schema


@pytest.mark.parametrize(
    ("schema", "given_", "message"),
    [
        (struct(payload=BinaryType()), {}, "the stream is missing"),
        (struct(payload=BinaryType(), pay_load=LongType()), {}, "no column pay_load; did you mean payload?"),
        (
            struct(payload=StringType(), stream_id=LongType()),
            {},
            "column payload has to be binary, not string",
        ),
        (struct(seq=LongType(), stream_id=LongType()), {}, "the rows have no payload"),
        (struct(seq=LongType(), payload=BinaryType()), {"stream": "1"}, "rows have seq but no epoch"),
        (struct(gap_count=LongType(), payload=BinaryType()), {"stream": "1"}, "gap rows are not written"),
    ],
)
def test_invalid_columns_are_rejected_before_any_task(
    target: Path, schema: StructType, given_: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_incoming(schema, Options({"path": str(target), **given_}, WRITE))
    assert message in str(caught.value)


def test_overwrite_and_foreign_directories_are_rejected(tmp_path: Path) -> None:
    fine = struct(payload=BinaryType(), stream_id=LongType())
    with pytest.raises(ConfigError, match="a recording only grows"):
        make_writer(Options({"path": str(tmp_path)}, WRITE), fine, overwrite=True)
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(NotARecording, match=r"letters\.txt"):
        make_writer(Options({"path": str(tmp_path)}, WRITE), fine, overwrite=False)


def test_error_of_an_invalid_row_names_the_frame(target: Path) -> None:
    options = Options({"path": str(target)}, WRITE)
    with pytest.raises(ValueError, match="stream 10000, epoch 1, frame 3: the row has no payload"):
        list(incoming_frames(rows([3], payload=[None]), options))
    with pytest.raises(ValueError, match="frame 3: element type 'float128'"):
        list(incoming_frames(rows([3], dtype=["float128"]), options))
