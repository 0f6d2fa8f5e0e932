"""Processes that tell of themselves, and that listen."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

import tensorpool as tp
from tests.remote_process import Background


class Member:
    """A context with at most one producer and one consumer on it."""

    producer: tp.Producer
    consumer: tp.Consumer

    def __init__(self, options: dict[str, Any]) -> None:
        self.context = tp.open(**options)
        self.offering: Background | None = None

    def produce(self, stream_id: int, **options: Any) -> int | None:
        self.producer = self.context.producer(stream_id, pools=["64KiB"], nslots=8, **options)
        return self.producer.epoch

    def set_metadata(self, attributes: dict[str, Any]) -> int:
        return self.producer.set_metadata(attributes)

    def set_blob(self, blob_type: int, length: int) -> int:
        return self.producer.set_blob(blob_type, np.arange(length, dtype=np.uint8))

    def offer_always(self, dtype: str = "uint32") -> None:
        """Frames whose first element is the number of their metadata version."""

        def offer(stop: Any) -> None:
            while not stop.wait(0.002):
                self.producer.offer(np.array([self.producer.meta_version % 1000], dtype))

        self.offering = Background(offer)

    def hold_the_interpreter(self, seconds: float) -> None:
        """No other Python code runs meanwhile."""
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))

    def consume(self, stream_id: int) -> None:
        self.consumer = self.context.consumer(stream_id)

    def look(self) -> dict[str, Any] | None:
        """The newest frame, and what is known of it."""
        frame = self.consumer.latest()
        if frame is None:
            return None
        return {
            "epoch": frame.epoch,
            "version": frame.meta_version,
            "meta": None if frame.meta is None else dict(frame.meta),
            "dtype": frame.element_type,
            "name": self.consumer.source_name,
        }

    def newest(self) -> dict[str, Any] | None:
        found = self.consumer.metadata
        return None if found is None else dict(found)

    def blob_length(self, blob_type: int) -> int | None:
        found = self.consumer.blob(blob_type)
        return None if found is None else len(found)

    def close(self) -> None:
        if self.offering is not None:
            self.offering.stop()
        self.context.close()
