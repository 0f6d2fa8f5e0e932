"""A process with consumers."""

from __future__ import annotations

from typing import Any

import tensorpool as tp


class Watcher:
    """Consumers of one stream, each with its own wishes."""

    def __init__(self, mode: str, options: dict[str, Any]) -> None:
        self.context = tp.open(mode, **options)  # type: ignore[arg-type]
        self.consumers: list[tp.Consumer] = []

    def watch(self, stream_id: int, wishes: list[dict[str, Any]]) -> None:
        self.consumers = [self.context.consumer(stream_id, **wish) for wish in wishes]
