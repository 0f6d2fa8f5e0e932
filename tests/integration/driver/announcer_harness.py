"""Harness for tests of the native announcer: regions, an announcer, and a listener for announces."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorpool import _native
from tensorpool.driver.agent import AnnouncerOptions
from tensorpool.sbe import ShmPoolAnnounce
from tensorpool.shm import EpochFiles, EpochSpec, PoolSpec, create_epoch
from tests.integration.conductors import open_conductor

DEADLINE_S = 60.0
SECOND_NS = 1_000_000_000
# The conductor's duty cycle takes 2 ms. The long period keeps a slow machine from making a live driver look
# stalled.
PERIOD_NS = SECOND_NS // 5
NEVER_NS = 3600 * SECOND_NS
POOLS = [PoolSpec(1, 64), PoolSpec(2, 4096)]


class Regions:
    """The files of one epoch, and the options with which an announcer announces them."""

    def __init__(self, base: Path, stream_id: int, epoch: int = 1_000) -> None:
        self.base = base
        self.stream_id = stream_id
        self.files = create_epoch(EpochSpec(base, "n", stream_id, epoch, 8, POOLS, user="me"))

    @property
    def epoch(self) -> int:
        return self.files.epoch

    @property
    def directory(self) -> Path:
        return self.files.directory

    def assign(self, epoch: int) -> None:
        assigned = _native.assign_epoch(
            self.directory, epoch=epoch, stream_id=self.stream_id, nslots=8, pools=POOLS
        )
        self.files = EpochFiles.from_native(assigned, epoch, 8)

    def options(self, *, producer_id: int = 0, **changes: Any) -> dict[str, Any]:
        files = replace(self.files, **changes)
        return {"stream_id": self.stream_id, "files": files, "producer_id": producer_id}

    def superblock(self, name: str = "header.ring") -> _native.Superblock:
        with (self.directory / name).open("rb") as file:
            return _native.read_superblock(file.read(64))

    @property
    def activity_ns(self) -> int:
        """The oldest activity timestamp of all regions."""
        names = ("header.ring", "1.pool", "2.pool")
        return min(self.superblock(name).activity_timestamp_ns for name in names)


class AnnounceListener:
    """A subscription to a test's announce stream, on its own conductor."""

    def __init__(self, conductor: _native.Conductor, announce_stream_id: int) -> None:
        self._subscription = _native.Subscription(conductor, "aeron:ipc", announce_stream_id)
        self.announces: list[ShmPoolAnnounce] = []

    @property
    def is_open(self) -> bool:
        return self._subscription.is_ready and self._subscription.is_connected

    def poll(self) -> list[ShmPoolAnnounce]:
        self.announces += [ShmPoolAnnounce.decode(message) for message in self._subscription.poll(256)]
        return self.announces

    def received(self, stream_id: int) -> list[ShmPoolAnnounce]:
        return [announce for announce in self.poll() if announce.stream_id == stream_id]

    def close(self) -> None:
        self._subscription.close()


class AnnouncerHarness:
    """A conductor with an announcer, another conductor with a listener, and regions."""

    def __init__(self, stack: ExitStack, aeron_dir: str, base: Path, announces: int) -> None:
        self._stack = stack
        self._base = base
        self._aeron_dir = aeron_dir
        self._announces = announces
        self.conductor = self._open()

    def _open(self) -> _native.Conductor:
        conductor = open_conductor(
            self._aeron_dir, base_dir=str(self._base), announce=self._announces, announce_period_ns=PERIOD_NS
        )
        self._stack.callback(conductor.close)
        assert conductor.wait_connected(DEADLINE_S)
        return conductor

    def announcer(
        self, *, period_ns: int = PERIOD_NS, stall_ns: int = NEVER_NS, lock_memory: bool = False
    ) -> _native.StreamAnnouncer:
        options = AnnouncerOptions(period_ns, stall_ns, [self._base], lock_memory)
        announcer = _native.StreamAnnouncer(self.conductor, options)
        self._stack.callback(announcer.close)
        return announcer

    def listener(self) -> AnnounceListener:
        listener = AnnounceListener(self._open(), self._announces)
        self._stack.callback(listener.close)
        return listener

    def regions(self, stream_id: int, **options: Any) -> Regions:
        self._stack.callback(shutil.rmtree, self._base / "tensorpool-me", ignore_errors=True)
        return Regions(self._base, stream_id, **options)
