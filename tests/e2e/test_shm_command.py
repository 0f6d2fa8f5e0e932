"""`tensorpool shm inspect` on regions of a living producer, of a dead one, and on broken ones."""

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
    """The directory of a stream with three frames in it."""
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


def test_a_living_stream_is_sound(command_line: CommandLine, stream: Path) -> None:
    done = command_line.run("shm", "inspect", str(stream))
    assert done.returncode == 0, done.stdout
    assert "newest sequence 2; 3 committed, 0 in progress, 1 empty" in done.stdout
    assert "32x16" in done.stdout
    assert "✓ no rule is broken" in done.stdout
    assert "alive" in done.stdout
    one_slot = command_line.run("shm", "inspect", str(stream), "--slots", "1").stdout
    assert one_slot.count("committed  32x16") == 1
    assert "2 more; --slots 4 lists all" in one_slot


def test_machines_get_json_with_wide_numbers_as_text(command_line: CommandLine, stream: Path) -> None:
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


def test_a_uri_is_a_path_too(command_line: CommandLine, stream: Path) -> None:
    (pool,) = stream.glob("*/1.pool")
    (report,) = command_line.json("shm", "inspect", f"shm:file?path={pool}")
    assert [one["path"] for one in report["regions"]] == [str(pool)]


def test_a_broken_region_is_status_1_and_says_what_is_broken(
    command_line: CommandLine, stream: Path, tmp_path: Path
) -> None:
    (pool,) = stream.glob("*/1.pool")
    copy = tmp_path / "1.pool"
    copy.write_bytes(b"\0" + pool.read_bytes()[1:])
    done = command_line.run("shm", "inspect", str(copy))
    assert done.returncode == 1
    assert "✗ 1.pool: magic is" in done.stdout
    again = command_line.run("shm", "inspect", str(copy), "--json")
    assert again.returncode == 1
    assert json.loads(again.stdout)[0]["valid"] is False


def test_what_is_not_there_is_one_sentence(command_line: CommandLine, tmp_path: Path) -> None:
    done = command_line.run("shm", "inspect", str(tmp_path / "nothing"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {tmp_path}/nothing: No such file or directory\n"
    empty = command_line.run("shm", "inspect", str(tmp_path))
    assert empty.returncode == 1
    assert "has no regions: name a region file" in empty.stderr
    assert command_line.run("shm", "inspect").returncode == 2
