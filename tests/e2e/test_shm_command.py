"""`tensorpool shm inspect` on regions of a running producer and on invalid regions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorpool as tp
from tests.e2e.commandline import CommandLine


@pytest.fixture
def command_line(aeron_dir: Path, shm_base: Path) -> CommandLine:
    return CommandLine(aeron_dir, shm_base)


@pytest.fixture
def stream(command_line: CommandLine, free_stream_id: int) -> Iterator[Path]:
    """Directory of a stream with three frames."""
    with (
        tp.MediaDriver(command_line.aeron_dir),
        tp.open(
            "standalone",
            aeron_dir=command_line.aeron_dir,
            media_driver="external",
            shm_base_dir=command_line.shm_base,
        ) as ctx,
        ctx.producer(free_stream_id, pools=["64KiB"], nslots=4) as producer,
    ):
        for _ in range(3):
            producer.offer(np.ones((32, 16), np.float32))
        (directory,) = command_line.shm_base.glob("*/*/*")
        yield directory


def test_inspect_of_a_running_stream_reports_no_error(command_line: CommandLine, stream: Path) -> None:
    result = command_line.run("shm", "inspect", str(stream))
    assert result.returncode == 0, result.stdout
    assert "newest sequence 2; 3 committed, 0 in progress, 1 empty" in result.stdout
    assert "32x16" in result.stdout
    assert "✓ no rule is broken" in result.stdout
    assert "alive" in result.stdout
    first_slot = command_line.run("shm", "inspect", str(stream), "--slots", "1").stdout
    assert first_slot.count("committed  32x16") == 1
    assert "2 more; --slots 4 lists all" in first_slot


def test_json_output_has_wide_integers_as_text(command_line: CommandLine, stream: Path) -> None:
    (report,) = command_line.json("shm", "inspect", str(stream))
    ring, pool = report["regions"]
    assert report["valid"] is True
    assert (ring["kind"], pool["kind"]) == ("header ring", "payload pool")
    assert ring["ring"]["newest_seq"] == "2"
    assert ring["ring"]["slots"][2] == {
        "index": 2,
        "state": "committed",
        "seq": "2",
        "shape": [32, 16],
        "dtype": "float32",
        "bytes": 2048,
        "pool_id": 1,
        "timestamp_ns": ring["ring"]["slots"][2]["timestamp_ns"],
    }
    assert ring["superblock"]["epoch"] == Path(report["directory"]).name


def test_inspect_accepts_a_region_uri(command_line: CommandLine, stream: Path) -> None:
    (pool,) = stream.glob("*/1.pool")
    (report,) = command_line.json("shm", "inspect", f"shm:file?path={pool}")
    assert [region["path"] for region in report["regions"]] == [str(pool)]


def test_invalid_region_is_reported_with_exit_status_1(
    command_line: CommandLine, stream: Path, tmp_path: Path
) -> None:
    (pool,) = stream.glob("*/1.pool")
    copy = tmp_path / "1.pool"
    copy.write_bytes(b"\0" + pool.read_bytes()[1:])
    result = command_line.run("shm", "inspect", str(copy))
    assert result.returncode == 1
    assert "✗ 1.pool: magic is" in result.stdout
    json_result = command_line.run("shm", "inspect", str(copy), "--json")
    assert json_result.returncode == 1
    assert json.loads(json_result.stdout)[0]["valid"] is False


def test_missing_path_prints_one_line(command_line: CommandLine, tmp_path: Path) -> None:
    result = command_line.run("shm", "inspect", str(tmp_path / "nothing"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"error: {tmp_path}/nothing: No such file or directory\n"
    empty = command_line.run("shm", "inspect", str(tmp_path))
    assert empty.returncode == 1
    assert "has no regions: name a region file" in empty.stderr
    assert command_line.run("shm", "inspect").returncode == 2
