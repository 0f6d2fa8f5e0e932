"""Client processes of the attachment tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorpool as tp


class Client:
    """A process with one context and one producer."""

    context: tp.Context
    producer: tp.Producer

    def open(self, mode: str | None = None, **options: Any) -> bool:
        """Opens the context; returns whether it embeds the driver."""
        self.context = tp.open(mode, **options)  # type: ignore[arg-type]
        return self.context.embeds_driver

    def embeds_driver(self) -> bool:
        return self.context.embeds_driver

    def produce(self, stream_id: int, **options: Any) -> int | None:
        self.producer = self.context.producer(stream_id, **options)
        return self.producer.epoch

    def offer(self) -> str:
        return self.producer.offer(np.arange(4)).outcome

    def close(self) -> None:
        self.context.close()
