"""The command `tensorpool recording`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tensorpool import recording
from tensorpool.cli import cli
from tensorpool.errors import NotARecording
from tests.unit.recording.conftest import STREAM, seqs

Make = Callable[..., Path]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["recording", *map(str, arguments)])


@pytest.fixture
def root(make_recording: Make) -> Path:
    return make_recording("a recording", (0, 5), (8, 4), segment_bytes=1)


def test_info_as_text_and_as_json(root: Path) -> None:
    done = run("info", root)
    assert done.exit_code == 0
    assert "9 in" in done.stdout
    assert "unexplained 3" in done.stdout
    found = json.loads(run("info", root, "--json").stdout)
    (stream,) = found["streams"]
    assert (stream["stream_id"], stream["rows"], stream["segments"]) == (STREAM, 9, 2)
    assert stream["epochs"][0]["epoch"] == "1"
    assert stream["epochs"][0]["gaps"] == {"unexplained": 3}


def test_info_of_a_long_recording_fits_eighty_columns(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = recording.info(root)
    (stream,) = found.streams
    found.streams = [
        replace(
            stream, segments=12_345, rows=1_234_567, size_bytes=999 << 30,
            first_time_ns=1_700_000_000 * 10**9, last_time_ns=1_700_900_000 * 10**9,
        )
    ]  # fmt: skip
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(recording, "info", lambda _: found)
    done = run("info", root)
    head, row = done.stdout.splitlines()[5:7]
    assert "…" not in done.stdout
    assert head.split() == ["stream", "epochs", "segments", "frames", "size", "from", "lasts", "missing"]
    assert "2023-11-14 22:13Z" in row
    assert "unexplai" in row, "only the last column wraps"


def test_empty_recording_verifies_and_cannot_be_exported(tmp_path: Path) -> None:
    recording.RecordingWriter(tmp_path / "empty", background=False).close()
    done = run("verify", tmp_path / "empty")
    assert (done.exit_code, done.stdout) == (0, "✓ 0 frames in 0 segments, 0 B: all as written\n")
    done = run("export", tmp_path / "empty", tmp_path / "x.npy")
    assert done.exit_code == 2
    assert "has no frames" in done.stderr


def test_verify_notes_a_missing_manifest(root: Path) -> None:
    (root / "_manifest").unlink()
    done = run("verify", root)
    assert (done.exit_code, "there is no manifest" in done.stdout) == (0, True)


def test_verify_exit_status_and_repair(root: Path) -> None:
    assert run("verify", root).exit_code == 0
    ref = recording.open(root).frame(STREAM, 2).ref
    content = bytearray(Path(ref.path).read_bytes())
    content[ref.offset] ^= 1
    Path(ref.path).write_bytes(content)
    done = run("verify", root)
    assert done.exit_code == 1
    assert "frame 2" in done.stdout
    assert f"recording repair {shlex.quote(str(root))}" in done.stderr
    report = json.loads(run("verify", root, "--json").stdout)
    assert (report["ok"], report["problems"][0]["kind"]) == (False, "payload")
    report = json.loads(run("repair", root, "--json").stdout)
    assert [(gap["first_seq"], gap["count"]) for gap in report["lost"]] == [("2", 1)]
    assert run("verify", root).exit_code == 0
    assert "nothing to repair" in run("repair", root).stdout


def test_cut_merge_and_export_write_the_selection(root: Path, tmp_path: Path) -> None:
    done = run("cut", root, tmp_path / "a", "--first-seq", 0, "--last-seq", 2)
    assert (done.exit_code, done.stdout) == (0, "")
    assert "3 frames" in done.stderr
    assert (
        run("cut", root, tmp_path / "b", "--from", "1970-01-01T00:00:00.000004Z", "--to", 9_500).exit_code
        == 0
    )
    merged = run("merge", tmp_path / "a", tmp_path / "b", "--into", tmp_path / "c", "--json")
    assert json.loads(merged.stdout) == {
        "path": str(tmp_path / "c"), "rows": 6, "payload_bytes": 600, "streams": [STREAM]
    }  # fmt: skip
    assert seqs(recording.open(tmp_path / "c")) == [0, 1, 2, 4, 8, 9]
    assert run("export", root, tmp_path / "f.npy", "--stream", STREAM, "--last-seq", 3).exit_code == 0
    assert np.load(tmp_path / "f.npy").shape == (4, 100)
    exported = run("export", root, tmp_path / "f.npz", "--stream", STREAM, "--json")
    assert json.loads(exported.stdout) == {"path": str(tmp_path / "f.npz"), "rows": 9}
    part = json.loads(run("cut", root, tmp_path / "d", "--last-seq", 0, "--json").stdout)
    assert (part["rows"], part["streams"]) == (1, [STREAM])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "ROOT", "f.csv"], "the formats are npy"),
        (["cut", "ROOT", "x", "--from", "yesterday"], "2026-01-31T12:00:00Z"),
        (["info", "nowhere"], "does not exist"),
        (["merge", "ROOT"], "--into"),
    ],
)
def test_usage_error_has_status_two_and_a_hint(arguments: list[str], message: str, root: Path) -> None:
    done = run(*(str(root) if argument == "ROOT" else argument for argument in arguments))
    assert done.exit_code == 2
    assert message in done.stderr


def test_directory_without_a_recording_raises_not_a_recording(tmp_path: Path) -> None:
    done = run("info", tmp_path)
    assert isinstance(done.exception, NotARecording)


@pytest.mark.parametrize("verb", ["info", "verify", "repair", "cut", "merge", "export"])
def test_help_of_every_command_has_examples(verb: str) -> None:
    done = run(verb, "--help")
    assert done.exit_code == 0
    assert f"tensorpool recording {verb}" in done.stdout
