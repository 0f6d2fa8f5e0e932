"""A process that plays a recording, and one that listens."""

from __future__ import annotations

from typing import Any

import tensorpool as tp
from tensorpool.replayer import Replay
from tests.remote_process import Background

from .conftest import Listener


class Player:
    """A context and one replay on it."""

    replay: Replay

    def __init__(self, options: dict[str, Any]) -> None:
        self.context = tp.open(**options)

    def play(self, root: str, **options: Any) -> None:
        self.replay = self.context.replay(root, **options)

    def stats(self) -> dict[str, Any]:
        return self.replay.stats().as_json()

    def close(self) -> None:
        self.replay.close()


class Ear:
    """A context and one consumer on it that takes whatever comes."""

    def __init__(self, options: dict[str, Any], stream_id: int) -> None:
        self.context = tp.open(**options)
        self.listener = Listener(self.context.consumer(stream_id, max_outstanding_seq_gap=0))
        self.listening = Background(self._listen)

    def _listen(self, stop: Any) -> None:
        while not stop.is_set():
            self.listener.poll()
            self.listener.consumer.wait(0.02)

    def heard(self) -> list[tuple[str, int, int]]:
        """Epoch, timestamp and checksum of each frame."""
        return [(str(one.epoch), one.timestamp_ns, one.crc32c) for one in list(self.listener.frames)]
