"""Replayers that are killed, and drivers that go away under them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensorpool import recording
from tests.integration.recovery.deployment import Deployment
from tests.remote_process import RemoteError, RemoteProcess

from .conftest import MS, record
from .roles import Ear, Player

FRAMES = 400


def checksums(root: Path, stream_id: int) -> list[int]:
    return [frame.crc32c for frame in recording.open(root).frames(stream_id)]


def by_epoch(heard: list[Any]) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for epoch, timestamp_ns, crc32c in heard:
        found.setdefault(epoch, []).append((timestamp_ns, crc32c))
    return found


def seq_of(timestamp_ns: int) -> int:
    return (timestamp_ns - 1_000) // 10


def begin(deployment: Deployment, player: RemoteProcess, root: Path, **options: Any) -> None:
    """Until the driver has noticed a death, the stream has a producer."""

    def begins() -> bool:
        try:
            player.call("play", root=str(root), wait=60, nslots=512, **options)
        except RemoteError as error:
            if error.kind != "AttachError":
                raise
            return False
        return True

    deployment.until(begins)


@pytest.fixture
def played(deployment: Deployment, root: Path) -> Path:
    record(root, deployment.stream_id, frames=FRAMES, every_ns=5 * MS)
    deployment.driver()
    return root


def test_a_replayer_that_is_killed_leaves_the_stream_to_the_next(
    deployment: Deployment, played: Path
) -> None:
    deployment.service()
    ear = deployment.start(Ear, deployment.options, deployment.stream_id)
    for _ in range(3):
        killed = deployment.start(Player, deployment.options)
        before = len(ear.call("heard"))
        begin(deployment, killed, played)
        deployment.until(lambda before=before: len(ear.call("heard")) > before + 5)
        killed.kill()
    player = deployment.start(Player, deployment.options)
    begin(deployment, player, played, speed="max")
    deployment.until(lambda: player.call("stats")["state"] == "ended")
    wanted = checksums(played, deployment.stream_id)

    def last() -> list[int]:
        epochs = by_epoch(ear.call("heard"))
        return [crc32c for _, crc32c in epochs[max(epochs, key=int)]]

    deployment.until(lambda: len(last()) == FRAMES)
    assert last() == wanted
    for frames in by_epoch(ear.call("heard")).values():
        seqs = [seq_of(timestamp_ns) for timestamp_ns, _ in frames]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs))), "whole and in order, as far as it came"
        assert [crc32c for _, crc32c in frames] == wanted[seqs[0] : seqs[0] + len(seqs)]
    player.call("close")
    # The dead ones' leases are left to run out; those who ended are gone.
    assert len(list((played / "_leases").iterdir())) == 3


@pytest.mark.parametrize("is_killed", [True, False], ids=["kill -9", "in order"])
def test_a_replay_goes_on_when_the_driver_is_back(
    deployment: Deployment, played: Path, is_killed: bool
) -> None:
    service = deployment.service()
    ear = deployment.start(Ear, deployment.options, deployment.stream_id)
    player = deployment.start(Player, deployment.options)
    begin(deployment, player, played)
    deployment.until(lambda: len(ear.call("heard")) > 20)
    if is_killed:
        service.kill()
    else:
        assert service.end() == 0
        deployment.until(lambda: player.call("stats")["state"] == "away")
    deployment.service()
    deployment.until(lambda: player.call("stats")["state"] == "ended")
    stats = player.call("stats")
    assert stats["frames"] == FRAMES, "what could not go out was waited with, and then went out once"
    assert sum(stats["streams"][0]["outcomes"].values()) == FRAMES
    wanted = checksums(played, deployment.stream_id)
    deployment.until(lambda: seq_of(ear.call("heard")[-1][1]) == FRAMES - 1)
    heard = ear.call("heard")
    seqs = [seq_of(timestamp_ns) for _, timestamp_ns, _ in heard]
    assert seqs == sorted(set(seqs)), "in order, none twice"
    assert [crc32c for _, _, crc32c in heard] == [wanted[seq] for seq in seqs]
    assert len(by_epoch(heard)) > 1
    player.call("close")
