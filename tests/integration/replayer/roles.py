"""Roles of child processes: a replayer, and a consumer."""

from __future__ import annotations

from typing import Any

import tensorpool as tp
from tensorpool.replayer import Replay
from tensorpool.text import JsonMapping
from tests.remote_process import Background

from .conftest import FrameCollector


class ReplayProcess:
    """A context and one replay on it."""

    replay: Replay

    def __init__(self, options: dict[str, Any]) -> None:
        self.context = tp.open(**options)

    def play(self, root: str, **options: Any) -> None:
        self.replay = self.context.replay(root, **options)

    def stats(self) -> JsonMapping:
        return self.replay.stats().to_json()

    def close(self) -> None:
        self.replay.close()


class ConsumerProcess:
    """A context and one consumer that receives all frames."""

    def __init__(self, options: dict[str, Any], stream_id: int) -> None:
        self.context = tp.open(**options)
        self.collector = FrameCollector(self.context.consumer(stream_id, max_outstanding_seq_gap=0))
        self.polling = Background(self._poll)

    def _poll(self, stop: Any) -> None:
        while not stop.is_set():
            self.collector.poll()
            self.collector.consumer.wait(0.02)

    def received(self) -> list[tuple[str, int, int]]:
        """Epoch, timestamp and checksum of each frame."""
        return [(str(frame.epoch), frame.timestamp_ns, frame.crc32c) for frame in list(self.collector.frames)]
