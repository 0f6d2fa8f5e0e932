"""The programs that scenarios start, kill and pause. Each prints one line of JSON when it is asked to end.

`python -m tests.chaos.programs ROLE …`; SIGTERM asks it to end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorpool as tp
from tests.chaos.pattern import ELEMENTS, is_frame, new_writer, write_frame

_STOP = threading.Event()


def main(arguments: list[str]) -> None:
    """Runs a role: its name, then its options as JSON."""
    signal.signal(signal.SIGTERM, lambda *_: _STOP.set())
    role, options = arguments[0], json.loads(arguments[1])
    roles: dict[str, Callable[..., None]] = {"producer": produce, "consumer": consume, "recorder": record}
    roles[role](**options)


def _report(report: dict[str, Any]) -> None:
    print(json.dumps(report), flush=True)


def _open(options: dict[str, Any]) -> tp.Context:
    return tp.open(**options)


def produce(stream_id: int, options: dict[str, Any], hz: float) -> None:
    """Publishes frames until it is asked to end; takes the stream over when its holder is gone."""
    writer = new_writer()
    with _open(options) as context:
        while not _STOP.is_set():
            try:
                producer = context.producer(stream_id, pools=[8 * ELEMENTS], nslots=64)
                break
            except tp.TensorPoolError:
                _STOP.wait(0.05)
        else:
            return
        with producer:
            while not _STOP.is_set():
                try:
                    with producer.claim((ELEMENTS,), "uint64") as slot:
                        write_frame(slot.array, writer, slot.seq)
                except tp.TensorPoolError:
                    # No lease at the moment: it attaches again by itself.
                    _STOP.wait(0.02)
                    continue
                _STOP.wait(1 / hz)
            ledger = producer.ledger()
            _report({"published": ledger.published, "balanced": ledger.balanced, "ledger": str(ledger)})


def consume(stream_id: int, options: dict[str, Any]) -> None:
    """Receives frames and checks every word, until it is asked to end."""
    checked = torn = 0
    example: list[int] = []
    with _open(options) as context, context.consumer(stream_id) as consumer:
        while not _STOP.is_set():
            try:
                frames = consumer.poll(16)
            except tp.TensorPoolError:
                frames = []
            for frame in frames:
                copy = frame.array.copy()
                if not frame.valid():
                    continue
                checked += 1
                if not is_frame(copy, frame.seq):
                    torn += 1
                    example = [frame.epoch, frame.seq]
            if not frames:
                time.sleep(0.002)
        ledger = consumer.ledger()
        _report({
            "checked": checked, "torn": torn, "example": example, "balanced": ledger.balanced,
            "ledger": str(ledger),
        })  # fmt: skip


def record(stream_id: int, options: dict[str, Any], root: str, keep_free: str = "1MiB") -> None:
    """Records a stream until it is asked to end."""
    with _open(options) as context:
        recorder = context.record(root, streams=[stream_id], buffer="16MiB", keep_free=keep_free)
        with recorder:
            _STOP.wait()
    _report({"recorded": True})


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main(sys.argv[1:])
