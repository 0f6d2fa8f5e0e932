"""A process with producers, consumers and a recorder, which causes drops on request."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

import tensorpool as tp
from tests.remote_process import Background


class EndpointProcess:
    """One context; producers by stream id, consumers by name."""

    def __init__(self, **options: Any) -> None:
        self.context = tp.open(**options)
        self.producers: dict[int, Any] = {}
        self.consumers: dict[str, Any] = {}
        self.background: dict[str, Background] = {}
        self.recorder: Any = None

    # --- producing

    def produce(self, stream_id: int, nslots: int = 64, **more: Any) -> int:
        producer = self.context.producer(stream_id, nslots=nslots, pools=["4KiB"], **more)
        self.producers[stream_id] = producer
        assert producer.epoch is not None
        return producer.epoch

    def offer(self, stream_id: int, count: int = 1, nbytes: int = 800) -> dict[str, int]:
        outcomes: dict[str, int] = {}
        for _ in range(count):
            outcome = str(self.producers[stream_id].offer(np.zeros(nbytes // 8)).outcome)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
        return outcomes

    def offer_at(self, stream_id: int, hz: float) -> None:
        """Offers frames in the background until `stop_background`."""

        def loop(stop: threading.Event) -> None:
            while not stop.wait(1 / hz):
                self.offer(stream_id)

        self.background[f"offer {stream_id}"] = Background(loop)

    def wrap_onto_claim(self, stream_id: int, count: int) -> int:
        """Holds a claim while `count` frames are offered; frames that would use its slot are dropped."""
        producer = self.producers[stream_id]
        slot = producer.claim((4,), "float64")
        self.offer(stream_id, count)
        slot.commit()
        return producer.ledger().dropped["slot_claimed"]

    def make_hole(self, stream_id: int) -> int:
        """Abandons a claim after newer frames were offered."""
        self.offer(stream_id)
        slot = self.producers[stream_id].claim((4,), "float64")
        self.offer(stream_id, 3)
        slot.abandon()
        return self.producers[stream_id].ledger().holes

    def derive(self, stream_id: int, consumer: str, count: int) -> None:
        """Offers frames that are made from those of a consumer."""
        for _ in range(count):
            frame = self.consumers[consumer].receive(timeout=60)
            self.producers[stream_id].offer(np.array(frame.array), parents=[frame])

    def producer_ledger(self, stream_id: int) -> dict[str, Any]:
        ledger = self.producers[stream_id].ledger()
        return {
            "committed": ledger.committed,
            "published": ledger.published,
            "unpublished": {reason: n for reason, n in ledger.unpublished.items() if n},
            "dropped": {reason: n for reason, n in ledger.dropped.items() if n},
            "holes": ledger.holes,
            "bytes": ledger.bytes,
        }

    def end_producer(self, stream_id: int) -> None:
        self.producers.pop(stream_id).close()

    # --- consuming

    def consume(self, name: str, stream_id: int, **more: Any) -> int:
        consumer = self.context.consumer(stream_id, **more)
        self.consumers[name] = consumer
        consumer.wait_for_producer(timeout=60)
        return consumer.state().consumer_id or 0

    def state(self, name: str) -> dict[str, Any]:
        return {**self.consumers[name].state().to_json(), "phase": str(self.consumers[name].phase)}

    def poll(self, name: str, seconds: float = 0.3, at_most: float = 30.0) -> int:
        """Polls until there is no frame for `seconds`, or for `at_most` seconds. Returns the frame count."""
        received, until = 0, time.monotonic() + seconds
        end = time.monotonic() + at_most
        while time.monotonic() < min(until, end):
            frames = self.consumers[name].poll(64)
            received += len(frames)
            if frames:
                until = time.monotonic() + seconds
            time.sleep(0.002)
        return received

    def latest(self, name: str) -> bool:
        return self.consumers[name].latest() is not None

    def keep_polling(self, name: str) -> None:
        def loop(stop: threading.Event) -> None:
            while not stop.wait(0.001):
                self.consumers[name].poll(64)

        self.background[f"poll {name}"] = Background(loop)

    def stop_background(self) -> None:
        while self.background:
            self.background.popitem()[1].stop()

    def consumer_ledger(self, name: str) -> dict[str, Any]:
        ledger = self.consumers[name].ledger()
        return {
            "span": ledger.span,
            "received": ledger.received,
            "dropped": {reason: n for reason, n in ledger.dropped.items() if n},
        }

    def end_consumer(self, name: str) -> None:
        self.consumers.pop(name).close()

    # --- recording

    def record(self, out: str, streams: list[int]) -> None:
        self.recorder = self.context.record(out, streams=streams)

    def recorder_call(self, name: str) -> None:
        getattr(self.recorder, name)()

    def recorded(self) -> list[dict[str, Any]]:
        return [
            {"stream_id": row.stream_id, "span": row.span, "rows": row.rows, "gaps": dict(row.gaps)}
            for row in self.recorder.ledger()
        ]

    def close(self) -> None:
        self.stop_background()
        if self.recorder is not None:
            self.recorder.close()
        self.context.close()
