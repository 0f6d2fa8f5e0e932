"""Processes of the metadata tests that publish and receive metadata."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

import tensorpool as tp
from tests.remote_process import Background


class EndpointProcess:
    """A process with a context, and at most one producer and one consumer."""

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

    def offer_continuously(self, dtype: str = "uint32") -> None:
        """Offers frames whose first element is their metadata version."""

        def offer(stop: Any) -> None:
            while not stop.wait(0.002):
                self.producer.offer(np.array([self.producer.meta_version % 1000], dtype))

        self.offering = Background(offer)

    def hold_gil(self, seconds: float) -> None:
        """Holds the GIL, so that no other Python code of the process runs."""
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))

    def consume(self, stream_id: int) -> None:
        self.consumer = self.context.consumer(stream_id)

    def newest_frame(self) -> dict[str, Any] | None:
        """The newest_metadata frame with its metadata."""
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

    def newest_metadata(self) -> dict[str, Any] | None:
        metadata = self.consumer.metadata
        return None if metadata is None else dict(metadata)

    def blob_length(self, blob_type: int) -> int | None:
        blob = self.consumer.blob(blob_type)
        return None if blob is None else len(blob)

    def close(self) -> None:
        if self.offering is not None:
            self.offering.stop()
        self.context.close()
