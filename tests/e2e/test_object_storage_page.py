"""The commands and the program of docs/how-to/keep-recordings-in-object-storage.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tensorpool import recording
from tests.e2e.pages import ROOT, blocks, looks_like, steps
from tests.s3_server import S3Server

PAGE = ROOT / "docs" / "how-to" / "keep-recordings-in-object-storage.md"


def test_page_about_object_storage_works(s3_server: S3Server, tmp_path: Path) -> None:
    limits = recording.WriterLimits(segment_bytes=300_000, batch_bytes=50_000)
    with recording.RecordingWriter(tmp_path / "recording", limits=limits, background=False) as writer:
        for seq in range(100):
            image = np.full((96, 128), seq, np.uint8)
            writer.append(image, stream_id=20000, epoch=1, seq=seq)
    environment = {
        **os.environ,
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }

    def run(command: str) -> str:
        result = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
            timeout=300,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        return result.stdout + result.stderr

    before, after = blocks(PAGE, "console")
    for command, expected in steps(before):
        assert looks_like(run(command), expected), command
    [program] = blocks(PAGE, "python")
    (tmp_path / "read.py").write_text(program)
    assert run("python read.py").startswith("100 (96, 128) s3://lake/camera/stream=20000/epoch=1/")
    for command, expected in steps(after):
        assert looks_like(run(command), expected), command
    assert np.load(tmp_path / "frames.npy").shape == (100, 96, 128)
    assert recording.verify(tmp_path / "copy").ok
    [settings] = blocks(PAGE, "toml")
    (tmp_path / "tensorpool.toml").write_text(settings)
    run("tensorpool config check tensorpool.toml")
