"""A process with producers, consumers and a recorder, told by a test what to lose on purpose."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

import tensorpool as tp
from tests.remote_process import Background


class Station:
    """One context; streams by id, readers by name."""

    def __init__(self, **options: Any) -> None:
        self.context = tp.open(**options)
        self.producers: dict[int, Any] = {}
        self.readers: dict[str, Any] = {}
        self.at_work: dict[str, Background] = {}
        self.recorder: Any = None

    # --- producing

    def produce(self, stream_id: int, nslots: int = 64, **more: Any) -> int:
        producer = self.context.producer(stream_id, nslots=nslots, pools=["4KiB"], **more)
        self.producers[stream_id] = producer
        return producer.epoch

    def offer(self, stream_id: int, count: int = 1, nbytes: int = 800) -> dict[str, int]:
        outcomes: dict[str, int] = {}
        for _ in range(count):
            outcome = str(self.producers[stream_id].offer(np.zeros(nbytes // 8)).outcome)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
        return outcomes

    def offer_at(self, stream_id: int, hz: float) -> None:
        """In the background, until `rest`."""

        def turn(stop: threading.Event) -> None:
            while not stop.wait(1 / hz):
                self.offer(stream_id)

        self.at_work[f"offer {stream_id}"] = Background(turn)

    def wrap_onto_a_claim(self, stream_id: int, count: int) -> int:
        """Holds a slot while `count` frames are offered; those that would wrap onto it are dropped."""
        producer = self.producers[stream_id]
        slot = producer.claim((4,), "float64")
        self.offer(stream_id, count)
        slot.commit()
        return producer.ledger().dropped["slot_claimed"]

    def leave_a_hole(self, stream_id: int) -> int:
        """Abandons a claim that newer frames have passed."""
        self.offer(stream_id)
        slot = self.producers[stream_id].claim((4,), "float64")
        self.offer(stream_id, 3)
        slot.abandon()
        return self.producers[stream_id].ledger().holes

    def derive(self, stream_id: int, reader: str, count: int) -> None:
        """Frames that are made from those of a reader."""
        for _ in range(count):
            frame = self.readers[reader].receive(timeout=60)
            self.producers[stream_id].offer(np.array(frame.array), parents=[frame])

    def producer_ledger(self, stream_id: int) -> dict[str, Any]:
        found = self.producers[stream_id].ledger()
        return {
            "committed": found.committed,
            "published": found.published,
            "unpublished": {k: v for k, v in found.unpublished.items() if v},
            "dropped": {k: v for k, v in found.dropped.items() if v},
            "holes": found.holes,
            "bytes": found.bytes,
        }

    def end_producer(self, stream_id: int) -> None:
        self.producers.pop(stream_id).close()

    # --- reading

    def consume(self, name: str, stream_id: int, **more: Any) -> int:
        reader = self.context.consumer(stream_id, **more)
        self.readers[name] = reader
        reader.wait_for_producer(timeout=60)
        return reader.standing()["consumer_id"]

    def standing(self, name: str) -> dict[str, Any]:
        return {**self.readers[name].standing(), "phase": str(self.readers[name].phase)}

    def take(self, name: str, seconds: float = 0.3, at_most: float = 30.0) -> int:
        """Reads until nothing came for a moment, and no longer than it may."""
        got, until = 0, time.monotonic() + seconds
        end = time.monotonic() + at_most
        while time.monotonic() < min(until, end):
            frames = self.readers[name].poll(64)
            got += len(frames)
            if frames:
                until = time.monotonic() + seconds
            time.sleep(0.002)
        return got

    def newest(self, name: str) -> bool:
        return self.readers[name].latest() is not None

    def take_always(self, name: str) -> None:
        def turn(stop: threading.Event) -> None:
            while not stop.wait(0.001):
                self.readers[name].poll(64)

        self.at_work[f"take {name}"] = Background(turn)

    def rest(self) -> None:
        while self.at_work:
            self.at_work.popitem()[1].stop()

    def consumer_ledger(self, name: str) -> dict[str, Any]:
        found = self.readers[name].ledger()
        return {
            "span": found.span,
            "received": found.received,
            "dropped": {k: v for k, v in found.dropped.items() if v},
        }

    def end_consumer(self, name: str) -> None:
        self.readers.pop(name).close()

    # --- recording

    def record(self, out: str, streams: list[int]) -> None:
        self.recorder = self.context.record(out, streams=streams)

    def recorder_call(self, name: str) -> None:
        getattr(self.recorder, name)()

    def recorded(self) -> list[dict[str, Any]]:
        return [
            {"stream_id": one.stream_id, "span": one.span, "rows": one.rows, "gaps": dict(one.gaps)}
            for one in self.recorder.ledger()
        ]

    def close(self) -> None:
        self.rest()
        if self.recorder is not None:
            self.recorder.close()
        self.context.close()
