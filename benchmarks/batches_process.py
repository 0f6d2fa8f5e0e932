"""Processes of the batch measurement: `python -m benchmarks.batches_process ROLE PLAN`.

The producer offers blocks of frames at full speed, the consumer takes what has come. Every frame has its
number in its first and in its last element. Phases are those of `endpoint_process`, without the latency.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from .endpoint_process import exit_with_parent, pin_to_core, read_start, write_line
from .library import WORD_BYTES, Plan
from .peers.tensorpool import STREAM_ID, open_context, pool_stride

BLOCK = 256
_S = 1_000_000_000
_CONNECT_TIMEOUT_S = 20.0

clock = time.monotonic_ns


def produce(plan: Plan) -> dict[str, Any]:
    """Offers blocks until the end of the rate phase."""
    block = np.zeros((BLOCK, plan.size_bytes // WORD_BYTES), np.uint64)
    with (
        open_context(plan) as context,
        context.producer(STREAM_ID, pools=[pool_stride(plan.size_bytes)], nslots=plan.nslots) as producer,
    ):
        pin_to_core(0)
        if not producer.wait_for_consumer(_CONNECT_TIMEOUT_S):
            raise SystemExit(f"no consumer within {_CONNECT_TIMEOUT_S:.0f} s")
        write_line("ready")
        start = read_start()
        while clock() < start:
            pass
        end = start + int((plan.warmup_s + plan.rate_s) * _S)
        numbers, offer_many, sent, published = np.arange(BLOCK, dtype=np.uint64), producer.offer_many, 0, 0
        began = clock()
        while clock() < end:
            block[:, 0] = block[:, -1] = numbers
            published += offer_many(block).published
            numbers += np.uint64(BLOCK)
            sent += BLOCK
        seconds = (clock() - began) / _S
        return {"sent_hz": sent / seconds, "published_hz": published / seconds}


def consume(plan: Plan) -> dict[str, Any]:
    """Takes batches during the rate phase."""
    out = np.zeros((plan.nslots, plan.size_bytes // WORD_BYTES), np.uint64)
    with open_context(plan) as context, context.consumer(STREAM_ID) as consumer:
        pin_to_core(1)
        if not consumer.wait_for_producer(_CONNECT_TIMEOUT_S):
            raise SystemExit(f"no producer within {_CONNECT_TIMEOUT_S:.0f} s")
        write_line("ready")
        rate = read_start() + int(plan.warmup_s * _S)
        end = rate + int(plan.rate_s * _S)
        poll_batch, received, torn, first, last = consumer.poll_batch, 0, 0, None, 0
        while (now := clock()) < end:
            batch = poll_batch(plan.nslots, out)
            if batch is None or now < rate:
                continue
            numbers = batch.array[:, 0]
            torn += int((numbers != batch.array[:, -1]).sum())
            received += len(batch)
            first, last = int(numbers[0]) if first is None else first, int(numbers[-1])
        ledger = consumer.ledger()
    span = last - first + 1 if first is not None else 0
    return {
        "delivered_hz": received / plan.rate_s,
        "loss": 1 - received / span if span else 1.0,
        "torn": torn,
        "balanced": ledger.balanced,
    }


ROLES = {"producer": produce, "consumer": consume}

if __name__ == "__main__":
    exit_with_parent()
    write_line(json.dumps(ROLES[sys.argv[1]](Plan.from_json(sys.argv[2]))))
