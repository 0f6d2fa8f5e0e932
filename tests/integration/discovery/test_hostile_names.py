"""A stream whose name has escape sequences: commands that print names print it safely."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tensorpool as tp
from tensorpool.cli import cli
from tensorpool.sbe import DataSourceAnnounce

HOSTILE = "cam\x1b]0;owned\x07\x1b[2J\nforged row\r"
SAFE = r"cam\x1b]0;owned"


@pytest.fixture
def stream_id(
    aeron_dir: Path, shm_base: Path, free_stream_id: int, wait_until: Callable[..., Any]
) -> Iterator[int]:
    """A stream that another process names: any client of the media driver can publish metadata."""
    options: dict[str, Any] = {"aeron_dir": aeron_dir, "shm_base_dir": shm_base, "announce_period": 0.2}
    with tp.open(mode="embedded", **options) as ctx, ctx.producer(free_stream_id) as camera:
        metadata = ctx.connection.publication(ctx.stream_ids.metadata)
        wait_until(lambda: metadata.is_connected and camera.epoch, timeout=60)
        found = wait_until(lambda: ctx.discover(stream_id=free_stream_id, timeout=30), timeout=60)[0]
        named = DataSourceAnnounce(
            stream_id=free_stream_id, producer_id=found.producer_id, epoch=found.epoch,
            meta_version=1_000, name=HOSTILE,
        ).encode()  # fmt: skip
        stop = threading.Event()

        def publish() -> None:
            while not stop.wait(0.01):
                metadata.offer(named)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            wait_until(lambda: any(found.name == HOSTILE for found in ctx.discover(timeout=30)), timeout=60)
            yield free_stream_id
        finally:
            stop.set()
            thread.join()
            metadata.close()


@pytest.mark.parametrize(
    ("command", "shows_name"),
    [
        ("discover", True),
        ("discover --watch --count 1", True),
        ("stream ls", True),
        ("stream info {}", True),
        ("top --once", True),
        ("top --once --stream {}", True),
        ("driver streams", False),
        ("ledger", True),
        ("doctor", False),
    ],
)
def test_commands_print_a_hostile_name_safely(
    command: str, shows_name: bool, stream_id: int, aeron_dir: Path
) -> None:
    arguments = [*command.format(stream_id).split(), "--aeron-dir", str(aeron_dir)]
    result = CliRunner().invoke(cli, arguments, env={"COLUMNS": "250", "LINES": "40"})
    assert result.exit_code in (0, 1), result.output
    assert (SAFE in result.output) is shows_name, result.output
    for line in result.output.split("\n"):
        assert line.isprintable(), line
        assert not line.startswith("forged"), line
