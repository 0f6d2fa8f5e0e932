"""Replays after the death of a replayer or of the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensorpool import recording
from tests.integration.recovery.deployment import Deployment
from tests.remote_process import RemoteError, RemoteProcess

from .conftest import MS, record
from .roles import ConsumerProcess, ReplayProcess

FRAMES = 400


def checksums(root: Path, stream_id: int) -> list[int]:
    return [frame.crc32c for frame in recording.open(root).frames(stream_id)]


def by_epoch(frames: list[Any]) -> dict[str, list[tuple[int, int]]]:
    epochs: dict[str, list[tuple[int, int]]] = {}
    for epoch, timestamp_ns, crc32c in frames:
        epochs.setdefault(epoch, []).append((timestamp_ns, crc32c))
    return epochs


def seq_of(timestamp_ns: int) -> int:
    return (timestamp_ns - 1_000) // 10


def start_replay(deployment: Deployment, replayer: RemoteProcess, root: Path, **options: Any) -> None:
    """Retries while the driver still holds the lease of a killed producer."""

    def try_start() -> bool:
        try:
            replayer.call("play", root=str(root), wait=60, nslots=512, **options)
        except RemoteError as error:
            if error.kind != "AttachError":
                raise
            return False
        return True

    deployment.until(try_start)


@pytest.fixture
def recorded(deployment: Deployment, root: Path) -> Path:
    record(root, deployment.stream_id, frames=FRAMES, every_ns=5 * MS)
    deployment.driver()
    return root


def test_killed_replayer_frees_its_stream(deployment: Deployment, recorded: Path) -> None:
    deployment.service()
    consumer = deployment.start(ConsumerProcess, deployment.options, deployment.stream_id)
    for _ in range(3):
        killed = deployment.start(ReplayProcess, deployment.options)
        frames_before = len(consumer.call("received"))
        start_replay(deployment, killed, recorded)
        deployment.until(
            lambda frames_before=frames_before: len(consumer.call("received")) > frames_before + 5
        )
        killed.kill()
    replayer = deployment.start(ReplayProcess, deployment.options)
    start_replay(deployment, replayer, recorded, speed="max")
    deployment.until(lambda: replayer.call("stats")["state"] == "ended")
    expected = checksums(recorded, deployment.stream_id)

    def last_epoch() -> list[int]:
        epochs = by_epoch(consumer.call("received"))
        return [crc32c for _, crc32c in epochs[max(epochs, key=int)]]

    deployment.until(lambda: len(last_epoch()) == FRAMES)
    assert last_epoch() == expected
    for frames in by_epoch(consumer.call("received")).values():
        seqs = [seq_of(timestamp_ns) for timestamp_ns, _ in frames]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs))), "complete and in order up to the kill"
        assert [crc32c for _, crc32c in frames] == expected[seqs[0] : seqs[0] + len(seqs)]
    replayer.call("close")
    # Leases of killed replayers expire later; the last replayer has removed its own.
    assert len(list((recorded / "_leases").iterdir())) == 3


@pytest.mark.parametrize("is_killed", [True, False], ids=["kill -9", "in order"])
def test_replay_continues_after_a_driver_restart(
    deployment: Deployment, recorded: Path, is_killed: bool
) -> None:
    service = deployment.service()
    consumer = deployment.start(ConsumerProcess, deployment.options, deployment.stream_id)
    replayer = deployment.start(ReplayProcess, deployment.options)
    start_replay(deployment, replayer, recorded)
    deployment.until(lambda: len(consumer.call("received")) > 20)
    if is_killed:
        service.kill()
    else:
        assert service.end() == 0
        deployment.until(lambda: replayer.call("stats")["state"] == "disconnected")
    deployment.service()
    deployment.until(lambda: replayer.call("stats")["state"] == "ended")
    stats = replayer.call("stats")
    assert stats["frames"] == FRAMES, "every frame is published once, also those that had to wait"
    assert sum(stats["streams"][0]["outcomes"].values()) == FRAMES
    expected = checksums(recorded, deployment.stream_id)
    deployment.until(lambda: seq_of(consumer.call("received")[-1][1]) == FRAMES - 1)
    received = consumer.call("received")
    seqs = [seq_of(timestamp_ns) for _, timestamp_ns, _ in received]
    assert seqs == sorted(set(seqs)), "in order, no frame twice"
    assert [crc32c for _, _, crc32c in received] == [expected[seq] for seq in seqs]
    assert len(by_epoch(received)) > 1
    replayer.call("close")
