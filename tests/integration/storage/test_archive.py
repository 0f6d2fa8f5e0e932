"""Recordings in an object store: pushed, read, followed, pulled, and what can go wrong meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.errors import ConfigError, CorruptRecording, LockHeld, NotARecording, StorageFailed
from tensorpool.recording.archive import Archiver
from tensorpool.recording.storage import PART_BYTES
from tensorpool.spark.tensors.rows import to_numpy
from tests.integration.storage.recordings import (
    FRAMES,
    SMALL_STREAM,
    STREAM,
    Damage,
    contents,
    make_array,
    relay,
    write_recording,
)
from tests.s3_server import PATIENCE_S, S3Server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "recording"
    write_recording(directory)
    return directory


@pytest.fixture
def archive(root: Path, s3_server: S3Server) -> str:
    uri = s3_server.uri("camera")
    recording.push(root, uri)
    return uri


def segments(server: S3Server, suffix: str = ".arrows") -> list[str]:
    return [key for key in server.objects() if "/stream=" in key and key.endswith(suffix)]


# --- reading


def test_remote_and_local_reading_are_byte_identical(root: Path, archive: str) -> None:
    assert contents(archive) == contents(root)
    assert contents(root.as_uri()) == contents(root)
    assert len(contents(archive)["frames"][STREAM]) == FRAMES - 1


def test_remote_frame_has_its_uri_and_position(root: Path, archive: str) -> None:
    with recording.open(archive) as remote, recording.open(root) as local:
        here, there = local.frame(STREAM, 30).ref, remote.frame(STREAM, 30).ref
        assert (there.offset, there.length, there.crc32c) == (here.offset, here.length, here.crc32c)
        assert str(there.path) == f"{archive}/{Path(here.path).relative_to(root)}"


def test_remote_reader_lists_no_keys(archive: str, s3_server: S3Server) -> None:
    before = len(s3_server.log.read_text())
    contents(archive)
    assert "list-type" not in s3_server.log.read_text()[before:]


def requests_of(server: S3Server, key: str, method: str = "GET") -> int:
    """The number of requests for an object until now."""
    return sum(f"{method} " in line and key in line for line in server.log.read_text().splitlines())


def test_batches_that_are_neighbours_are_read_by_one_request(tmp_path: Path, s3_server: S3Server) -> None:
    limits = recording.WriterLimits(batch_bytes=200_000)
    with recording.RecordingWriter(tmp_path / "small", limits=limits, background=False) as writer:
        for seq in range(300):
            writer.append(make_array(seq), stream_id=STREAM, epoch=1, seq=seq)
    recording.push(tmp_path / "small", uri := s3_server.uri("small"))
    (key,) = segments(s3_server)
    size, before = s3_server.file(key).stat().st_size, requests_of(s3_server, key)
    with recording.open(uri) as opened:
        frames = opened.frames(STREAM)
        assert all(np.array_equal(frame.array, make_array(frame.seq)) for frame in frames)
        batches = len(list(frames.runs()))
    parts = -(-size // PART_BYTES)
    assert batches >= 60 > parts + 1
    assert parts <= requests_of(s3_server, key) - before <= parts + 1


def test_next_segment_is_requested_before_this_one_is_read(archive: str, s3_server: S3Server) -> None:
    first, second, *_ = segments(s3_server)
    before = requests_of(s3_server, second)
    with recording.open(archive) as opened:
        frames = iter(opened.frames(STREAM))
        assert np.array_equal(next(frames).array, make_array(0))
        deadline = time.monotonic() + PATIENCE_S
        while requests_of(s3_server, second) == before:
            assert time.monotonic() < deadline, f"{second} is not requested while {first} is read"
            time.sleep(0.02)
        assert len(list(frames)) == FRAMES - 2


def test_frames_of_a_store_are_read_in_any_order(archive: str) -> None:
    rng = np.random.default_rng(23)
    with recording.open(archive) as opened:
        frames = opened.frames(STREAM)
        for number in [*rng.integers(0, len(frames), 100), *range(len(frames)), *range(len(frames), 0, -1)]:
            frame = frames[int(number) % len(frames)]
            assert np.array_equal(frame.array, make_array(frame.seq))


def test_columns_are_read_without_payloads(archive: str, s3_server: S3Server) -> None:
    """The index has them: planning a query must not cost the bytes of its frames."""
    for key in segments(s3_server):
        s3_server.file(key).unlink()
    with recording.open(archive) as opened:
        assert opened.frames(STREAM).columns()["seq"].tolist() == [s for s in range(FRAMES) if s != 7]


def test_remote_recording_is_followed_while_it_grows(root: Path, archive: str) -> None:
    with recording.open(archive) as opened:
        last = opened.latest(STREAM)
        assert last is not None
        assert last.seq == FRAMES - 1
        write_recording(root, first=FRAMES, count=20)
        assert not opened.after(last)
        recording.push(root)
        opened.refresh()
        assert [frame.seq for frame in opened.after(last)] == [
            s for s in range(FRAMES, FRAMES + 20) if s != 67
        ]
        assert opened.ledgers() == recording.open(root).ledgers()


def test_gaps_behind_the_archived_segments_wait_for_them(root: Path, archive: str) -> None:
    """The tables of an archive are ahead of its segments: what is in an open segment is not missing."""
    writer = recording.RecordingWriter(root, background=False)
    try:
        for seq in (FRAMES, FRAMES + 1, FRAMES + 3):
            if seq == FRAMES + 3:
                writer.gap(stream_id=STREAM, epoch=1, first_seq=FRAMES + 2, count=1, reason="late")
            writer.append(make_array(seq), stream_id=STREAM, epoch=1, seq=seq)
        writer.sync()
        recording.push(root)
        with recording.open(archive) as opened:
            assert [ledger.gaps for ledger in opened.ledger(STREAM)] == [{"late": 1}]
    finally:
        writer.close()
    recording.push(root)
    with recording.open(archive) as opened:
        assert [ledger.gaps for ledger in opened.ledger(STREAM)] == [{"late": 2}]
        assert opened.ledgers() == recording.open(root).ledgers()


def test_recording_that_another_program_copied_is_read(root: Path, s3_server: S3Server) -> None:
    """Without a list of tables, and without the indexes of segments."""
    expected = contents(root)
    for path in root.rglob("*"):
        if path.is_file() and path.suffix != ".index":
            target = s3_server.file(f"copied/{path.relative_to(root)}")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    assert contents(s3_server.uri("copied")) == expected


def test_filesystems_of_fsspec_are_read_too(root: Path) -> None:
    uri = "memory://archive/camera"
    recording.push(root, uri)
    assert contents(uri) == contents(root)
    assert recording.verify(uri).ok


def test_fifo_in_the_place_of_a_lock_does_not_hold_up_a_reader(
    archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("other", "left"):
        (tmp_path / f"tensorpool-recording-{name}").mkdir()
    os.mkfifo(tmp_path / "tensorpool-recording-other" / ".lock")
    (tmp_path / "tensorpool-recording-left" / ".lock").touch()
    assert len(recording.open(archive).frames(STREAM)) > 0
    assert not (tmp_path / "tensorpool-recording-left").exists(), "its process has ended"


def test_export_and_verify_take_a_uri(root: Path, archive: str, tmp_path: Path) -> None:
    local, remote = tmp_path / "local.npz", tmp_path / "remote.npz"
    for source, target in ((root, local), (archive, remote)):
        recording.export(source, target, stream_id=SMALL_STREAM)
    assert remote.read_bytes() == local.read_bytes()
    here, there = recording.verify(root), recording.verify(archive)
    assert there.problems == there.notes == []
    assert (there.rows, there.size_bytes, there.ledgers) == (here.rows, here.size_bytes, here.ledgers)


@pytest.mark.parametrize("where", ["payload", "columns", "schema", "index", "table", "missing", "manifest"])
def test_damage_in_the_store_is_reported(where: str, archive: str, s3_server: S3Server) -> None:
    suffix, part = {
        "index": (".index", 0.9),
        "schema": (".arrows", 0.0001),
        "columns": (".arrows", 0.004),
        "table": ("", 0.5),
    }.get(where, (".arrows", 0.5))
    keys = [key for key in s3_server.objects() if "/gaps/" in key and key.endswith(".arrows")]
    key = keys[0] if where == "table" else segments(s3_server, suffix or ".arrows")[0]
    if where == "manifest":
        key = "camera/_manifest"
    if where == "missing":
        s3_server.file(key).unlink()
    else:
        s3_server.damage(key, part)
    if where == "table":
        with pytest.raises(CorruptRecording, match="_tables/gaps"):
            recording.verify(archive)
        return
    result = recording.verify(archive)
    found = [str(problem) for problem in (result.notes if where == "index" else result.problems)]
    assert found, where
    assert all(str(text).startswith("s3://lake/camera") for text in found)
    assert where == "manifest" or key.removeprefix("camera/") in found[0]


def test_truncated_manifest_is_reported(archive: str, s3_server: S3Server) -> None:
    s3_server.damage("camera/_manifest")
    manifest = s3_server.file("camera/_manifest")
    manifest.write_bytes(manifest.read_bytes()[:40])
    assert "truncated" in str(recording.verify(archive).problems[0])


# --- pushing


def test_push_without_changes_uploads_nothing(root: Path, archive: str, s3_server: S3Server) -> None:
    keys = s3_server.objects()
    assert len(segments(s3_server, ".index")) == len(segments(s3_server)) > 4
    result = recording.push(root)
    assert (result.segments, result.uploaded_bytes, result.tables) == (0, 0, 0)
    assert result.archived == len(segments(s3_server))
    assert s3_server.objects() == keys


PUSHER = """
import sys
import tempfile
from tensorpool import recording
recording.push(sys.argv[1], sys.argv[2])
"""


def test_killed_push_is_continued_by_the_next(
    root: Path, s3_server: S3Server, wait_until: Callable[..., object]
) -> None:
    """Killed with each number of uploaded segments: readers never see a half, and the next push continues."""
    uri, expected = s3_server.uri("camera"), contents(root)
    total = len(list(root.rglob("*.arrows"))) - len(list((root / "_tables").rglob("*.arrows")))
    for count in range(1, total, 3):
        process = subprocess.Popen([sys.executable, "-c", PUSHER, str(root), uri])
        wait_until(
            lambda count=count, process=process: (
                len(segments(s3_server)) >= count or process.poll() is not None
            )
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
        if "camera/_manifest" not in s3_server.objects():
            with pytest.raises(NotARecording):
                recording.open(uri)
    result = recording.push(root, uri)
    assert result.archived == total
    assert result.resumed > 0 or result.segments == 0
    assert contents(uri) == expected
    assert recording.verify(uri).ok


def test_push_survives_a_server_that_stops(root: Path, s3_server: S3Server) -> None:
    uri = s3_server.uri("camera")
    s3_server.stop()
    with pytest.raises(StorageFailed, match="check the network"):
        recording.push(root, uri, attempts=1)
    back = threading.Timer(1.5, s3_server.start)
    back.start()
    try:
        # Its requests are repeated until the server is back.
        recording.push(root, uri)
    finally:
        back.join()
    assert contents(uri) == contents(root)


def test_corrupted_upload_is_noticed_and_repeated(
    root: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = s3_server.uri("camera")
    damage = Damage(left=1)
    with relay(s3_server.port, damage) as damaging, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{damaging.port}")
        recording.push(root, uri)
        assert damage.done == 1
    assert recording.verify(uri).ok
    assert contents(uri) == contents(root)


@pytest.mark.parametrize("keep_checksum", [False, True], ids=["unnoticed", "noticed by the store"])
def test_store_that_changes_bytes_is_not_believed(
    keep_checksum: bool, root: Path, archive: str, s3_server: S3Server
) -> None:
    """Without the manifest every segment is proven again, and the damaged one is uploaded again."""
    size = s3_server.damage(segments(s3_server)[1], keep_checksum=keep_checksum)
    s3_server.file("camera/_manifest").unlink()
    result = recording.push(root)
    assert result.resumed == result.segments - 1
    assert result.uploaded_bytes == size
    assert contents(archive) == contents(root)


def test_two_pushes_of_one_recording_exclude_each_other(root: Path, s3_server: S3Server) -> None:
    uri = s3_server.uri("camera")

    def push_within(_done: int, _total: int) -> None:
        with pytest.raises(LockHeld, match="another push"):
            recording.push(root, uri)

    recording.push(root, uri, progress=push_within)


def test_archive_belongs_to_one_recording(root: Path, archive: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_recording(other, count=3)
    with pytest.raises(ConfigError, match="has another recording"):
        recording.push(other, archive)
    with pytest.raises(ConfigError, match="is archived at"):
        recording.push(root, f"{archive}-2")


@pytest.mark.parametrize(
    "uri",
    ["s3://key:secret@bucket/a", "s3://bucket/a?access_key=K&secret_key=S", "abfs://c@a.net/p?sig=abc"],
)
def test_credentials_in_a_uri_are_refused_and_not_repeated(uri: str, tmp_path: Path) -> None:
    write_recording(tmp_path / "r", count=3)
    for act in (lambda: recording.open(uri), lambda: recording.push(tmp_path / "r", uri)):
        with pytest.raises(ConfigError, match="environment") as raised:
            act()
        assert "secret@" not in str(raised.value)
        assert "=S" not in str(raised.value)


def test_unknown_scheme_is_answered_with_those_that_work() -> None:
    with pytest.raises(ConfigError, match=r"gopher://lake: neither pyarrow .* nor fsspec .* use s3://"):
        recording.open("gopher://lake/recording")


# --- retention


def test_retention_keeps_what_is_not_archived(root: Path, s3_server: S3Server) -> None:
    uri = s3_server.uri("camera")
    s3_server.stop()
    with pytest.raises(StorageFailed):
        recording.push(root, uri, attempts=1)
    kept = recording.apply_retention(root, max_bytes=0)
    assert kept.removed == []
    assert kept.holders == [f"archive {uri}"]
    s3_server.start()
    expected = contents(root)
    recording.push(root)
    removed = recording.apply_retention(root, max_bytes=0)
    assert len(removed.removed) == len(segments(s3_server))
    assert not list(root.glob("stream=*/epoch=*/*"))
    # What retention removed here is still in the archive, also after the next push.
    write_recording(root, first=FRAMES, count=3)
    recording.push(root)
    after = contents(uri)
    assert after["frames"][STREAM][: FRAMES - 1] == expected["frames"][STREAM]
    assert [row[1] for row in after["frames"][STREAM][FRAMES - 1 :]] == [FRAMES, FRAMES + 1, FRAMES + 2]


# --- pull and ls


def test_pulled_recording_is_the_pushed_one(root: Path, archive: str, tmp_path: Path) -> None:
    target = tmp_path / "pulled"
    result = recording.pull(archive, target)
    assert result.present == 0
    assert contents(target) == contents(root)
    verified = recording.verify(target)
    assert (verified.problems, verified.notes) == ([], [])
    # Again, after a part of it is lost.
    lost = sorted(target.rglob("stream=*/epoch=1/*.arrows"))[0]
    lost.unlink()
    again = recording.pull(archive, target)
    assert again.segments == 1
    assert contents(target) == contents(root)


def test_pull_refuses_damage(archive: str, s3_server: S3Server, tmp_path: Path) -> None:
    s3_server.damage(segments(s3_server)[2])
    with pytest.raises(CorruptRecording, match="not as it was sealed"):
        recording.pull(archive, tmp_path / "pulled")


def test_recordings_are_listed(root: Path, archive: str, s3_server: S3Server, tmp_path: Path) -> None:
    write_recording(tmp_path / "second", count=4)
    recording.push(tmp_path / "second", s3_server.uri("second"))
    found = recording.list_recordings(s3_server.uri())
    assert [each.uri for each in found] == [archive, s3_server.uri("second")]
    assert found[0].streams == (STREAM, SMALL_STREAM)
    assert found[0].rows == 2 * (FRAMES - 1)
    assert recording.list_recordings(archive) == found[:1]
    local = recording.list_recordings(root)[0]
    assert (local.rows, local.size_bytes) == (found[0].rows, found[0].size_bytes)


# --- the command line


def test_commands_push_list_and_pull(root: Path, s3_server: S3Server, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "tensorpool", "recording", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout

    uri = s3_server.uri("camera")
    pushed = json.loads(run("push", str(root), uri, "--json"))
    assert pushed["archived"] == pushed["segments"] > 4
    assert [each["uri"] for each in json.loads(run("ls", s3_server.uri(), "--json"))] == [uri]
    assert json.loads(run("verify", uri, "--json"))["ok"] is True
    pulled = json.loads(run("pull", uri, str(tmp_path / "pulled"), "--json"))
    assert pulled["segments"] == pushed["segments"]
    assert contents(tmp_path / "pulled") == contents(root)
    for secret in (s3_server.secret_key, s3_server.access_key):
        for path in [*root.rglob("*"), *(tmp_path / "pulled").rglob("*")]:
            assert not path.is_file() or secret.encode() not in path.read_bytes()


# --- the recorder's archiver


def test_archiver_follows_a_recording_over_a_lost_network(
    root: Path, s3_server: S3Server, wait_until: Callable[..., object]
) -> None:
    uri = s3_server.uri("camera")
    s3_server.stop()
    archiver = Archiver(root, uri)
    try:
        wait_until(lambda: archiver.status.problem, timeout=120)
        # The recorder continues to write meanwhile, and retention removes nothing.
        write_recording(root, first=FRAMES, count=20)
        assert recording.apply_retention(root, max_bytes=0).removed == []
        s3_server.start()
        wait_until(lambda: archiver.status.archived, timeout=120)
        write_recording(root, first=FRAMES + 20, count=5)
    finally:
        archiver.close()
    assert archiver.status.problem is None
    assert contents(uri) == contents(root)


def test_archiver_that_cannot_end_its_push_names_the_next_command(
    root: Path, s3_server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    s3_server.stop()
    Archiver(root, s3_server.uri("camera")).close(timeout_s=0.1)
    assert f"tensorpool recording push {root}" in caplog.text
    s3_server.start()
    recording.push(root)
    assert contents(s3_server.uri("camera")) == contents(root)


def test_rows_by_reference_are_read_at_a_uri_with_options(
    root: Path, archive: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`root="s3://…?endpoint_override=…"`: the path of the segment goes before the options."""
    with recording.open(root) as opened:
        frame = opened.frame(STREAM, 3)
        row = {
            "stream_id": STREAM, "epoch": frame.epoch, "seq": frame.seq, "dtype": "uint8",
            "shape": [40_000], "strides": None, "payload_bytes": frame.ref.length,
            "crc32c": frame.ref.crc32c, "segment": str(frame.ref.path), "payload_offset": frame.ref.offset,
        }  # fmt: skip
    for name in ("AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(name)
    endpoint = s3_server.endpoint.removeprefix("http://")
    elsewhere = f"{archive}?endpoint_override={endpoint}&scheme=http"
    assert np.array_equal(to_numpy(row, root=elsewhere), make_array(3))
