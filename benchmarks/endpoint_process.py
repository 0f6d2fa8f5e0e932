"""The producer or consumer process of a measurement: `python -m benchmarks.endpoint_process ROLE PLAN`.

Prints `ready` when frames are received, reads the start time from stdin, and prints its result as a line of
JSON. Both processes use the same clock (CLOCK_MONOTONIC), so they need no messages between the phases:

    start |-- warm-up, paced --|-- latency, paced --|-- gap --|-- warm-up, full speed --|-- rate --| tail
"""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from .library import Frames, Plan, Sender, Source, load

_S = 1_000_000_000
_GAP_NS = _S // 20
_TAIL_NS = _S // 10
_CONNECT_PERIOD_S = 0.002
_CONNECT_TIMEOUT_NS = 20 * _S
# At full speed the clock is read once per this many frames. At 4 MiB these take a few milliseconds.
_FRAMES_PER_CLOCK_READ = 16

clock = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class Phases:
    """Start times of the phases, in nanoseconds of the monotonic clock."""

    start: int
    latency: int
    latency_end: int
    full_speed: int
    rate: int
    rate_end: int
    end: int

    @classmethod
    def from_plan(cls, plan: Plan, start: int) -> Phases:
        """Phases of a plan that starts at this time."""
        latency = start + int(plan.warmup_s * _S)
        latency_end = latency + int(plan.latency_s * _S)
        full_speed = latency_end + _GAP_NS
        rate = full_speed + int(plan.warmup_s * _S)
        rate_end = rate + int(plan.rate_s * _S)
        return cls(start, latency, latency_end, full_speed, rate, rate_end, rate_end + _TAIL_NS)


# --- the producer


def produce(plan: Plan) -> dict[str, Any]:
    """Runs the producer through all phases."""
    source = Source(plan.size_bytes)
    with load(plan.library).producer(plan, source) as sender:
        pin_to_core(0)
        write_line("ready")
        phases = Phases.from_plan(plan, _publish_until_start(sender, source))
        _publish_paced(sender, source, phases.start, phases.latency, plan.pace_hz)
        paced = _publish_paced(sender, source, phases.latency, phases.latency_end, plan.pace_hz)
        while clock() < phases.full_speed:
            pass
        sent_hz = _publish(sender, source, phases.end)
        result: dict[str, Any] = {"paced": paced, "sent_hz": sent_hz}
        if sender.bare_copy is not None:
            # The same loop with only the copy, right after it and into the same ring.
            bare, seconds = Sender(sender.bare_copy), plan.warmup_s + plan.rate_s
            result["bare_copy_hz"] = _publish(bare, source, clock() + int(seconds * _S))
        return result


def _publish_until_start(sender: Sender, source: Source) -> int:
    """Publishes frames until the start time arrives, so that the consumer sees that it is connected."""
    while not select.select([sys.stdin], [], [], _CONNECT_PERIOD_S)[0]:
        source.values[0] = source.values[-1] = clock()
        sender.send()
    return read_start()


def _publish_paced(sender: Sender, source: Source, begin: int, end: int, pace_hz: int) -> int:
    values, send, period = source.values, sender.send, _S // pace_hz
    due, sent = begin, 0
    while (now := clock()) < end:
        if now >= due:
            values[0] = values[-1] = now
            send()
            sent += 1
            due += period
            if due < now:
                # Delayed by more than a period: a burst to catch up would change the pace.
                due = now + period
    return sent


def _publish(sender: Sender, source: Source, end: int) -> float:
    """Publishes at full speed. Frames carry their number: reading the clock for each would cost too much."""
    values, send, sent, began = source.values, sender.send, 0, clock()
    while clock() < end:
        for number in range(sent, sent + _FRAMES_PER_CLOCK_READ):
            values[0] = values[-1] = number
            send()
        sent += _FRAMES_PER_CLOCK_READ
    return sent * _S / (clock() - began)


# --- the consumer


def consume(plan: Plan) -> dict[str, Any]:
    """Runs the consumer through all phases."""
    with load(plan.library).consumer(plan) as frames:
        pin_to_core(1)
        deadline = clock() + _CONNECT_TIMEOUT_NS
        while next(frames) is None:
            if clock() > deadline:
                raise SystemExit(
                    f"no frame arrived within {_CONNECT_TIMEOUT_NS // _S} s: is the producer running?"
                )
        write_line("ready")
        # The start time lies far enough ahead to drain the frames received so far.
        phases = Phases.from_plan(plan, read_start())
        return _latencies(frames, phases) | _delivered(frames, phases)


def _latencies(frames: Frames, phases: Phases) -> dict[str, Any]:
    begin, end, torn = phases.latency, phases.latency_end, 0
    latencies: list[int] = []
    for values in frames:
        now = clock()
        if values is None:
            if now >= end + _GAP_NS // 2:
                break
            continue
        stamp, last = values
        torn += stamp != last
        if begin <= stamp < end:
            latencies.append(now - stamp)
    if not latencies:
        return {"timed": 0, "torn": torn}
    p50, p99, p999 = np.percentile(np.array(latencies) / 1e3, (50, 99, 99.9))
    return {"timed": len(latencies), "torn": torn, "p50_us": p50, "p99_us": p99, "p999_us": p999}


def _delivered(frames: Frames, phases: Phases) -> dict[str, Any]:
    """Rate of received frames, and the share that was lost by their numbers."""
    torn, _, _, _ = _receive_until(frames, phases.rate)
    began = clock()
    torn_later, received, first, last = _receive_until(frames, phases.rate_end)
    seconds = (clock() - began) / _S
    return {
        "torn_rate": torn + torn_later,
        "received": received,
        "delivered_hz": received / seconds,
        "loss": 1 - received / (last - first + 1) if received else 1.0,
    }


def _receive_until(frames: Frames, end: int) -> tuple[int, int, int, int]:
    """Receives until a time; returns the torn and the received frames, the first and the last number."""
    torn = received = first = last = 0
    while clock() < end:
        for values in itertools.islice(frames, _FRAMES_PER_CLOCK_READ):
            if values is not None:
                number, last = values
                torn += number != last
                received += 1
                if received == 1:
                    first = number
    return torn, received, first, last


def pin_to_core(number: int) -> None:
    """Pins the calling thread to a core if there are enough; threads of the library run anywhere.

    Two threads that spin on the same core would measure the scheduler.
    """
    cores = sorted(os.sched_getaffinity(0))
    if number < len(cores):
        os.sched_setaffinity(0, cores[number : number + 1])


# --- messages to and from the parent process


def write_line(line: str) -> None:
    """Prints a line for the parent process."""
    print(line, flush=True)


def read_start() -> int:
    """Reads the start time from the parent process."""
    line = sys.stdin.readline()
    if not line:
        # The parent process has ended: the result has no reader.
        raise SystemExit(1)
    return int(line)


def exit_on_signal(_signal: int, _frame: FrameType | None) -> None:
    """Signal handler that raises SystemExit, so that `with` blocks close; the default action would not."""
    raise SystemExit(1)


ROLES = {"producer": produce, "consumer": consume}


def exit_with_parent() -> None:
    """Makes SIGTERM end this process in order, and leaves Ctrl-C to the parent process."""
    signal.signal(signal.SIGTERM, exit_on_signal)
    # Ctrl-C reaches the parent process too, which then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main() -> None:
    """Runs the role of the command line."""
    exit_with_parent()
    role, plan = sys.argv[1:]
    write_line(json.dumps(ROLES[role](Plan.from_json(plan))))


if __name__ == "__main__":
    main()
