"""A worker process that produces, consumes, or both, and counts its frames."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorpool as tp
from tests.remote_process import Background

ELEMENTS = 64


def is_as_written(payload: npt.NDArray[np.uint64], seq: int) -> bool:
    """Whether all elements are the sequence. The first frame of an epoch may carry another number, the same
    in all elements: the epoch changed after the producer had read the next sequence."""
    expected = payload.flat[0] if seq == 0 else seq
    return bool((payload == expected).all())


class Worker:
    """A context with at most one producer and one consumer."""

    context: tp.Context
    producer: tp.Producer
    consumer: tp.Consumer
    driver: tp.MediaDriver
    slot: tp.Slot

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.last_outcome: str | None = None
        self.longest_gap_s = 0.0
        self.received: dict[int, list[int]] = {}
        self.wrong = 0
        self.seen: list[dict[str, Any]] = []
        self.background: dict[str, Background] = {}

    # --- the connection

    def launch(self, aeron_dir: str, driver_timeout: float = 5.0) -> None:
        """Runs a media driver."""
        self.driver = tp.MediaDriver(aeron_dir, driver_timeout=driver_timeout)

    def open(self, **options: Any) -> bool:
        """Opens the context; returns whether the media driver runs in this process."""
        self.context = tp.open(**options)
        return self.context.embeds_media_driver

    def is_embedding(self) -> bool:
        """Whether the media driver runs in this process."""
        return self.context.embeds_media_driver

    def is_connected(self) -> bool:
        """Whether the context has a media driver."""
        return self.context.connected

    def events(self) -> list[dict[str, Any]]:
        """All events so far."""
        self.context.on_event(lambda event: self.seen.append(asdict(event)))
        return self.seen

    def close(self) -> None:
        """Stops the loops and closes the context."""
        for background in self.background.values():
            background.stop()
        self.context.close()

    # --- producing

    def produce(self, stream_id: int, nslots: int = 8, pools: list[str | int] | None = None) -> int | None:
        """Creates the producer; returns its epoch."""
        self.producer = self.context.producer(stream_id, nslots=nslots, pools=pools or ["4KiB"])
        return self.producer.epoch

    def offer(self) -> str:
        """Offers a frame whose elements are all its sequence; returns the outcome."""
        return self.producer.offer(np.full(ELEMENTS, self.producer.next_seq, np.uint64)).outcome

    def offer_always(self, per_second: float | None = None) -> None:
        """Offers frames on another thread, at full speed or at a rate."""
        self.background["offer"] = Background(lambda stop: self._offer(stop, per_second))

    def _offer(self, stop: threading.Event, per_second: float | None) -> None:
        payload = np.empty(ELEMENTS, np.uint64)
        producer = self.producer
        began = published_at = time.monotonic()
        for turn in itertools.count(1):
            payload.fill(producer.next_seq)
            offered = producer.offer(payload)
            now = time.monotonic()
            self.outcomes[offered.outcome] += 1
            self.last_outcome = offered.outcome
            if offered:
                self.longest_gap_s = max(self.longest_gap_s, now - published_at)
                published_at = now
            if stop.is_set():
                self.longest_gap_s = max(self.longest_gap_s, now - published_at)
                return
            if per_second is not None:
                # A delay is not made up for, so that no burst follows a pause.
                due = began + turn / per_second
                if due < now - 0.001:
                    began += now - due
                # The kernel cannot sleep for less.
                while (left := began + turn / per_second - time.monotonic()) > 0:
                    time.sleep(left if left > 0.0005 else 0)

    def check(self, name: str) -> None:
        """Raises the error of a failed loop, so that the test does not wait for it."""
        if name in self.background:
            self.background[name].check()

    def offering(self) -> dict[str, Any]:
        """Outcomes of the offers so far."""
        self.check("offer")
        return {"outcomes": self.outcomes, "last": self.last_outcome, "longest_gap_s": self.longest_gap_s}

    def stop_offering(self) -> dict[str, Any]:
        """Stops the offers; returns their outcomes."""
        self.background.pop("offer").stop()
        return self.offering()

    def claim_half(self) -> int:
        """Claims a slot and writes half of it; returns its sequence."""
        self.slot = self.producer.claim((ELEMENTS,), np.uint64)
        self.slot.array[: ELEMENTS // 2] = self.slot.seq
        return self.slot.seq

    def producer_ledger(self) -> dict[str, Any]:
        """Ledger and next sequence of the producer."""
        ledger = self.producer.ledger()
        return {**asdict(ledger), "balanced": ledger.balanced, "next_seq": self.producer.next_seq}

    # --- consuming

    def consume(self, stream_id: int, **options: Any) -> None:
        """Creates the consumer."""
        self.consumer = self.context.consumer(stream_id, **options)

    def mapped(self) -> int | None:
        """Epoch that the consumer has mapped."""
        return self.consumer.epoch

    def receive_always(self) -> None:
        """Receives and checks frames on another thread."""
        self.background["receive"] = Background(self._receive)

    def _receive(self, stop: threading.Event) -> None:
        while not stop.is_set():
            frame = self.consumer.receive_or_none(0.01)
            if frame is None:
                continue
            try:
                copy = frame.copy()
            except tp.FrameOverwritten:
                continue
            self.wrong += not is_as_written(copy, frame.seq)
            first_last_count = self.received.setdefault(frame.epoch, [frame.seq, frame.seq, 0])
            first_last_count[1] = frame.seq
            first_last_count[2] += 1

    def received_count(self) -> int:
        """Number of received frames."""
        return sum(count for _, _, count in self.received.values())

    def receiving(self) -> dict[str, Any]:
        """First, last and number of received frames by epoch, and the number of wrong frames."""
        self.check("receive")
        return {"received": self.received, "wrong": self.wrong}

    def stop_receiving(self) -> dict[str, Any]:
        """Stops receiving; returns the counts."""
        self.background.pop("receive").stop()
        return self.receiving()

    def poll_all(self) -> int:
        """Polls until no frame is left; returns their number."""
        count = 0
        while frames := self.consumer.poll(256):
            count += len(frames)
        return count

    def consumer_ledger(self) -> dict[str, Any]:
        """Ledger and last sequence of the consumer."""
        ledger = self.consumer.ledger()
        return {**asdict(ledger), "balanced": ledger.balanced, "last_seq": self.consumer.last_seq}
