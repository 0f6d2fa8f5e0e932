"""Processes of a pair as a user would write it: `python -m benchmarks.as_written_process ROLE PLAN`.

The sender sleeps between its frames, as one that waits for a device. A frame has its time in its first and in
its last 8 bytes, and the last frames have none.
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import tensorpool as tp

from .endpoint_process import exit_with_parent, read_start, write_line
from .library import Plan, Source
from .peers.tensorpool import STREAM_ID, pool_stride

_S = 1_000_000_000
_TIMEOUT_S = 20.0
# So many frames without a time end the receiver, also if the last ones of a burst are lost.
_LAST_FRAMES, _LAST_PAUSE_S = 20, 0.01

clock = time.monotonic_ns


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def send(plan: Plan) -> dict[str, Any]:
    """Sends a frame each millisecond."""
    source = Source(plan.size_bytes)
    with _SENDERS[plan.library](plan, source) as send_frame:
        write_line("ready")
        start = read_start()
        measured_from = start + int(plan.warmup_s * _S)
        end, period = measured_from + int(plan.latency_s * _S), _S // plan.pace_hz
        due, sent, cpu_s, began = start, 0, _cpu_s(), clock()
        while due < end:
            if (wait := due - clock()) > 0:
                time.sleep(wait / _S)
            now = clock()
            source.values[0] = source.values[-1] = now
            send_frame()
            sent += now >= measured_from
            # A frame that was late moves the later ones: a burst to catch up would change the pace.
            due = max(due + period, now)
        cores = (_cpu_s() - cpu_s) / (clock() - began) * _S
        source.values[0] = source.values[-1] = 0
        for _ in range(_LAST_FRAMES):
            send_frame()
            time.sleep(_LAST_PAUSE_S)
    return {"sent": sent, "sender_cores": cores}


def receive(plan: Plan) -> dict[str, Any]:
    """Receives until a frame has no time."""
    latencies, torn, stamps = [], 0, _RECEIVERS[plan.library](plan)
    cpu_s, first_ns, measured_from = 0.0, 0, 0
    for stamp, last in stamps:
        now = clock()
        if not stamp:
            break
        if not first_ns:
            cpu_s, first_ns, measured_from = _cpu_s(), now, stamp + int(plan.warmup_s * _S)
        torn += stamp != last
        if stamp >= measured_from:
            latencies.append(now - stamp)
    cores = (_cpu_s() - cpu_s) / (clock() - first_ns) * _S
    stamps.close()
    p50, p99, p999 = np.percentile(np.array(latencies) / 1e3, (50, 99, 99.9))
    figures = {"p50_us": p50, "p99_us": p99, "p999_us": p999}
    return figures | {"timed": len(latencies), "torn": torn, "receiver_cores": cores}


# --- tensorpool


@contextmanager
def _tensorpool_sender(plan: Plan, source: Source) -> Iterator[Callable[[], object]]:
    with (
        tp.open(aeron_dir=f"{plan.directory}/aeron", shm_base_dir=plan.directory) as context,
        context.producer(STREAM_ID, pools=[pool_stride(plan.size_bytes)], nslots=plan.nslots) as producer,
    ):
        if not producer.wait_for_consumer(_TIMEOUT_S):
            raise SystemExit(f"no consumer within {_TIMEOUT_S:.0f} s")
        yield lambda: producer.offer(source.array)


def _tensorpool_frames(plan: Plan) -> Iterator[tuple[int, int]]:
    with (
        tp.open(aeron_dir=f"{plan.directory}/aeron", shm_base_dir=plan.directory) as context,
        context.consumer(STREAM_ID, timeout=_TIMEOUT_S) as consumer,
    ):
        if not consumer.wait_for_producer(_TIMEOUT_S):
            raise SystemExit(f"no producer within {_TIMEOUT_S:.0f} s")
        write_line("ready")
        for frame in consumer:
            first, last = frame.array.item(0), frame.array.item(-1)
            if frame.valid():
                yield first, last


# --- iceoryx2


@contextmanager
def _iceoryx2_sender(plan: Plan, source: Source) -> Iterator[Callable[[], object]]:
    from .peers.iceoryx2 import LIBRARY, event_service

    notifier = event_service(plan).notifier_builder().create()
    with LIBRARY.producer(plan, source) as sender:

        def send_frame() -> None:
            sender.send()
            notifier.notify()

        yield send_frame


def _iceoryx2_frames(plan: Plan) -> Iterator[tuple[int, int]]:
    import iceoryx2 as iox2

    from .peers.iceoryx2 import event_service, subscriber

    listener, frames = event_service(plan).listener_builder().create(), subscriber(plan)
    view, end = (ctypes.c_uint64 * (plan.size_bytes // 8)).from_address, plan.size_bytes // 8 - 1
    write_line("ready")
    timeout = iox2.Duration.from_secs(int(_TIMEOUT_S))
    while listener.timed_wait(timeout):
        while (sample := frames.receive()) is not None:
            values = view(sample.payload_ptr)
            yield values[0], values[end]


_SENDERS = {"tensorpool": _tensorpool_sender, "iceoryx2": _iceoryx2_sender}
_RECEIVERS: dict[str, Callable[[Plan], Any]] = {
    "tensorpool": _tensorpool_frames,
    "iceoryx2": _iceoryx2_frames,
}
_ROLES = {"sender": send, "receiver": receive}

if __name__ == "__main__":
    exit_with_parent()
    write_line(json.dumps(_ROLES[sys.argv[1]](Plan.from_json(sys.argv[2]))))
