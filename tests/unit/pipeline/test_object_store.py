"""Tables on a real S3 server: the same rows as on a disk, also after kills and with two writers."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from tensorpool import recording
from tensorpool.cli import cli
from tensorpool.errors import PipelineError, StorageFailed
from tensorpool.pipeline import compact, report, run, status
from tensorpool.pipeline.delta import DeltaTables
from tensorpool.pipeline.tasks import LocalTasks
from tensorpool.recording import archive
from tensorpool.recording.table_store import ObjectStore
from tensorpool.sbe import DataSourceAnnounce
from tests.integration.storage.recordings import LostAnswers, relay, without_condition
from tests.s3_server import S3Server
from tests.unit.pipeline.harness import Killed, Stages, define, dies_at, record

pytest.importorskip("obstore")
pytestmark = pytest.mark.timeout(600)

ALIGNMENT = [{"name": "stereo", "streams": [10, 11], "tolerance": "1ms", "wait": "100ms"}]
MORE: dict[str, Any] = {"alignments": ALIGNMENT, "quality": {"interval": "100ms", "lateness": "50ms"}}


def rows_of(root: str, names: list[str]) -> dict[str, list[str]]:
    """The rows of each table, without the paths of files."""
    found = {}
    for name in names:
        rows = DeltaTable(f"{root}/{name}").to_pyarrow_table().to_pylist()
        found[name] = sorted(repr(sorted(row.items())) for row in rows)
    return found


NAMES = [
    "bronze/frames", "silver/frames", "silver/aligned/stereo", "gold/quality", "gold/quality_open",
    "gold/statistics",
]  # fmt: skip


def test_conditional_put_lets_one_writer_win(s3_server: S3Server) -> None:
    first, second = (ObjectStore(s3_server.uri("root")) for _ in range(2))
    assert first.put_new("_decisions/0.json", b"first")
    assert not second.put_new("_decisions/0.json", b"second")
    assert second.get("_decisions/0.json") == b"first"
    assert second.get("_decisions/1.json") is None
    assert second.names("_decisions") == ["0.json"]
    second.remove("_decisions/0.json")
    assert first.names("_decisions") == []


def test_definition_with_uris_is_validated(s3_server: S3Server, root: Path, tmp_path: Path) -> None:
    record(root, range(5))
    recording.push(root, s3_server.uri("recording"))
    file = tmp_path / "pipeline.toml"
    for name, out, code, message in (
        ("recording", "s3://lake/tables", 0, "is valid"),
        ("elsewhere", "s3://lake/tables", 1, "s3://lake/elsewhere"),
        ("recording", "ftp://lake/tables", 1, "ftp:// is not supported"),
    ):
        file.write_text(f'[pipeline]\nrecordings = ["s3://lake/{name}"]\nout = "{out}"\n')
        done = CliRunner().invoke(cli, ["pipeline", "validate", str(file)])
        assert done.exit_code == code, (name, out, done.output)
        assert message in f"{done.output}{done.exception}"
    assert not list(tmp_path.glob("s3*:*"))


def test_store_that_overwrites_what_exists_is_refused(
    s3_server: S3Server, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server itself heeds the condition; requests lose it on their way, and their signature with it."""
    record(root, range(5))
    settings = dataclasses.replace(define(root, Path("unused")), out=s3_server.uri("tables"))
    s3_server.let_anyone_in()
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    refusal = r"s3://lake/tables is on a store that cannot hold tables: it overwrites an object"
    with relay(s3_server.port, without_condition) as between, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{between.port}")
        store = ObjectStore(s3_server.uri("other"))
        assert store.put_new("twice", b"first")
        assert store.put_new("twice", b"second")
        with pytest.raises(PipelineError, match=refusal):
            run(settings, spark=object())  # type: ignore[arg-type]
    # Without a signature the server lets no client remove what the trial has written.
    written = {key.rpartition("/")[0] for key in s3_server.objects()}
    assert written == {"other", "tables/_writers"}
    Stages(settings).take_all()
    # The tables exist, and another server has taken the place of the one that made them.
    record(root, range(5, 10))
    with relay(s3_server.port, without_condition) as between, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{between.port}")
        with pytest.raises(PipelineError, match=refusal):
            run(settings, spark=object())  # type: ignore[arg-type]
    assert DeltaTable(f"{settings.out}/silver/frames").count() == 5


def test_store_that_refuses_conditions_is_refused(
    s3_server: S3Server, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(root, range(5))
    settings = dataclasses.replace(define(root, Path("unused")), out=s3_server.uri("tables"))
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(PipelineError, match=r"it refuses to create an object only if it does not exist \(Op"):
        run(settings, spark=object())  # type: ignore[arg-type]
    assert s3_server.objects() == []


def test_directory_without_hard_links_is_refused(
    root: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on FAT, and on buckets that are mounted as directories."""
    record(root, range(5))

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(PipelineError, match=r"cannot hold tables: it refuses .*a disk with hard links"):
        run(define(root, out), spark=object())  # type: ignore[arg-type]
    assert not [path for path in out.rglob("*") if path.is_file()]


def test_tables_on_s3_are_those_on_a_disk_after_kills_and_a_race(
    s3_server: S3Server, root: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(root, range(60), trace=7000)
    record(root, range(0, 60, 2), stream_id=11, shift_ns=1000)
    local = define(root, out, max_rows=30, **MORE)
    stages = Stages(local)
    stages.take_all()
    stages.close()
    uri = s3_server.uri("tables")
    settings = define(root, Path("unused"), max_rows=30, **MORE)
    settings = dataclasses.replace(settings, out=uri)
    dice = random.Random(3)
    for _ in range(4):
        dies = dies_at(dice.randrange(1, 25))
        with monkeypatch.context() as patch:
            for owner, name in (
                (ObjectStore, "put_new"),
                (ObjectStore, "create"),
                (ObjectStore, "remove"),
                (DeltaTables, "commit"),
            ):
                patch.setattr(owner, name, dies(getattr(owner, name)))
            try:
                Stages(settings).take_all()
            except Killed:
                continue
    # Two processes: what one decides, the other continues from, or it stops.
    record(root, range(60, 90))
    first, second = Stages(settings), Stages(settings)

    class Overtaken(LocalTasks):
        def run(self, work: Any, items: Any) -> Any:
            results = super().run(work, items)
            second.take()
            return results

    first.tasks = Overtaken()
    with pytest.raises(PipelineError, match="has decided micro-batch"):
        first.take()
    first.engine.close_sources()
    second.take_all()
    second.close()
    again = Stages(local)
    again.take_all()
    again.close()
    assert rows_of(uri, ["bronze/frames", "silver/frames"]) == rows_of(
        str(out), ["bronze/frames", "silver/frames"]
    )
    assert sum(DeltaTable(f"{uri}/{n}").count() for n in ("gold/quality", "gold/quality_open")) > 0
    assert compact(uri)["silver/frames"].after == 1
    assert status(uri).stages["silver"].totals.frames == 120
    found = report.collect(uri, samples=2)
    assert found.faults == []
    assert found.total("frames") == 120
    # No credential is in a table, a decision or a log.
    stored = s3_server.objects()
    for key in stored:
        assert s3_server.secret_key.encode() not in s3_server.file(key).read_bytes(), key


@pytest.mark.parametrize("payload", ["ref", "inline"])
def test_archive_of_a_recording_is_read_without_the_local_files(
    s3_server: S3Server, tmp_path: Path, payload: str
) -> None:
    """As on a host that shares no disk with the recorder: recording and tables are in the store."""
    root, uri = tmp_path / "recording", s3_server.uri("recording")
    record(root, range(40), trace=7000)
    message = DataSourceAnnounce(stream_id=10, producer_id=1, epoch=1, meta_version=0, name="camera")
    with recording.RecordingWriter(root) as writer:
        writer.add_message("metadata", message.encode(), stream_id=10, epoch=1, meta_version=0)
    recording.push(root, uri)
    away = root.rename(tmp_path / "elsewhere")
    tables = s3_server.uri("tables")
    settings = define(root, Path("unused"), recordings=[uri], max_rows=30, payload=payload, **MORE)
    settings = dataclasses.replace(settings, out=tables)
    Stages(settings).take_all()
    # It is followed while it grows.
    record(away, range(40, 60))
    recording.push(away, uri)
    Stages(settings).take_all()
    rows = DeltaTable(f"{tables}/silver/frames").to_pyarrow_table().sort_by("seq")
    assert rows["seq"].to_pylist() == list(range(60))
    assert set(rows["recording"].to_pylist()) == {uri}
    assert json.loads(rows["metadata"][0].as_py())["DataSourceAnnounce"]["name"] == "camera"
    statistics = DeltaTable(f"{tables}/gold/statistics").to_pyarrow_table().sort_by("seq")
    assert statistics["mean"].to_pylist() == list(range(60))
    found = report.collect(tables, samples=2)
    assert (found.faults, found.unread_recordings) == ([], [])
    assert [sample.problem for sample in found.samples] == [None, None]


def test_lost_answers_to_decisions_and_transactions_repeat_nothing(
    s3_server: S3Server, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has written the object, and its client does not learn it and writes it once more."""
    record(root, range(40))
    settings = dataclasses.replace(
        define(root, Path("unused"), max_rows=10, **MORE), out=s3_server.uri("tables")
    )
    answers = LostAnswers((b"/_decisions/", b"/_delta_log/", b"/pipeline.json"))
    with relay(s3_server.port, loses=answers) as between, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{between.port}")
        Stages(settings).take_all()
    names = {name.rpartition(b"/")[2] for name in answers.lost}
    assert {b"pipeline.json", b"000000000003.json", b"00000000000000000004.json"} <= names
    for name in ("bronze/frames", "silver/frames", "gold/statistics"):
        seqs = DeltaTable(f"{settings.out}/{name}").to_pyarrow_table(columns=["seq"])["seq"].to_pylist()
        assert sorted(seqs) == list(range(40)), name
    assert status(settings.out).stages["silver"].batch == 3


def test_store_that_does_not_answer_is_named(s3_server: S3Server, root: Path) -> None:
    record(root, range(5))
    settings = dataclasses.replace(define(root, Path("unused")), out=s3_server.uri("tables"))
    s3_server.stop()
    with pytest.raises(StorageFailed, match=r"s3://lake/tables does not answer: .*run the pipeline again"):
        run(settings, spark=object())  # type: ignore[arg-type]
    s3_server.start()
    Stages(settings).take_all()
    assert DeltaTable(f"{settings.out}/silver/frames").count() == 5


# Arrow's own threads that read through a Python file are what aborts a process at its end ("terminate called
# without an active exception"): the package reads without them.
PROGRAM = """
import sys
import deltalake
from tensorpool import recording
from tensorpool.pipeline import definition, marker, status
from tensorpool.pipeline.engine import Engine, tables_of
from tensorpool.pipeline.table_files import read_file
from tensorpool.pipeline.tasks import LocalTasks
from tensorpool.recording.table_store import open_store

found = status(sys.argv[1])
table = deltalake.DeltaTable(f"{sys.argv[1]}/silver/frames")
(name, *_) = table.file_uris()
path = name.split("/silver/frames/")[1]
assert read_file(open_store(sys.argv[1]), "silver/frames", path).num_rows > 0
settings = definition.parse({"pipeline": {"recordings": [sys.argv[2]], "out": sys.argv[3]}})
engine = Engine(settings, pipeline_id=marker.begin(settings, tables_of(settings)).pipeline_id)
engine.recover()
assert engine.run_batch(LocalTasks())
engine.close_sources()
opened = recording.open(sys.argv[2])
assert sum(1 for frame in opened.frames(10) if frame.array.size) == 10
# Neither the recording nor the tables are closed: a program may end anywhere.
"""


@pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.long)])
def test_programs_that_used_s3_end_cleanly(s3_server: S3Server, root: Path, times: int) -> None:
    record(root, range(10))
    uri, archived = s3_server.uri("tables"), s3_server.uri("archived")
    Stages(dataclasses.replace(define(root, Path("unused")), out=uri)).take_all()
    archive.push(root, archived)
    for number in range(times):
        arguments = [uri, archived, s3_server.uri(f"written-{number}")]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
