"""One side of a measurement, in a process of its own: `python -m benchmarks.role ROLE PLAN`.

Says `ready` on stdout when frames flow, reads the start time from stdin, and ends with a line of JSON.
Both sides work by the same clock (CLOCK_MONOTONIC), so the phases need no further words:

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
_HELLO_S = 0.002
_CONNECT_NS = 20 * _S
# Full speed: so many frames go by between two looks at the clock. At 4 MiB that is a few milliseconds.
_BETWEEN_LOOKS = 16

clock = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class Phases:
    """When what happens, in nanoseconds of the monotonic clock."""

    start: int
    latency: int
    latency_end: int
    full_speed: int
    rate: int
    rate_end: int
    end: int

    @classmethod
    def of(cls, plan: Plan, start: int) -> Phases:
        latency = start + int(plan.warmup_s * _S)
        latency_end = latency + int(plan.latency_s * _S)
        full_speed = latency_end + _GAP_NS
        rate = full_speed + int(plan.warmup_s * _S)
        rate_end = rate + int(plan.rate_s * _S)
        return cls(start, latency, latency_end, full_speed, rate, rate_end, rate_end + _TAIL_NS)


# --- the producer


def produce(plan: Plan) -> dict[str, Any]:
    source = Source(plan.size_bytes)
    with load(plan.library).producer(plan, source) as sender:
        keep_to_core(0)
        say("ready")
        phases = Phases.of(plan, _hello_until_start(sender, source))
        _publish_paced(sender, source, phases.start, phases.latency, plan.pace_hz)
        paced = _publish_paced(sender, source, phases.latency, phases.latency_end, plan.pace_hz)
        while clock() < phases.full_speed:
            pass
        sent_hz = _publish(sender, source, phases.end)
        result: dict[str, Any] = {"paced": paced, "sent_hz": sent_hz}
        if sender.bare_copy is not None:
            # The same loop around nothing but the copy, right after, into the same ring.
            bare, seconds = Sender(sender.bare_copy), plan.warmup_s + plan.rate_s
            result["bare_copy_hz"] = _publish(bare, source, clock() + int(seconds * _S))
        return result


def _hello_until_start(sender: Sender, source: Source) -> int:
    """Publishes a little, so that the consumer sees that it is connected, until the start time is known."""
    while not select.select([sys.stdin], [], [], _HELLO_S)[0]:
        source.words[0] = source.words[-1] = clock()
        sender.send()
    return read_start()


def _publish_paced(sender: Sender, source: Source, begin: int, end: int, pace_hz: int) -> int:
    words, send, period = source.words, sender.send, _S // pace_hz
    due, sent = begin, 0
    while (now := clock()) < end:
        if now >= due:
            words[0] = words[-1] = now
            send()
            sent += 1
            due += period
            if due < now:
                # Held up for more than a period: a burst to catch up would not be the pace.
                due = now + period
    return sent


def _publish(sender: Sender, source: Source, end: int) -> float:
    """As fast as it goes; frames carry their number, because a look at the clock for each would slow all."""
    words, send, sent, began = source.words, sender.send, 0, clock()
    while clock() < end:
        for number in range(sent, sent + _BETWEEN_LOOKS):
            words[0] = words[-1] = number
            send()
        sent += _BETWEEN_LOOKS
    return sent * _S / (clock() - began)


# --- the consumer


def consume(plan: Plan) -> dict[str, Any]:
    with load(plan.library).consumer(plan) as frames:
        keep_to_core(1)
        deadline = clock() + _CONNECT_NS
        while next(frames) is None:
            if clock() > deadline:
                raise SystemExit("no frame arrived: is the producer there?")
        say("ready")
        # The start is some time away: enough to drain what came meanwhile.
        phases = Phases.of(plan, read_start())
        return _latencies(frames, phases) | _delivered(frames, phases)


def _latencies(frames: Frames, phases: Phases) -> dict[str, Any]:
    begin, end, torn = phases.latency, phases.latency_end, 0
    latencies: list[int] = []
    for words in frames:
        now = clock()
        if words is None:
            if now >= end + _GAP_NS // 2:
                break
            continue
        stamp, last = words
        torn += stamp != last
        if begin <= stamp < end:
            latencies.append(now - stamp)
    if not latencies:
        return {"timed": 0, "torn": torn}
    p50, p99, p999 = np.percentile(np.array(latencies) / 1e3, (50, 99, 99.9))
    return {"timed": len(latencies), "torn": torn, "p50_us": p50, "p99_us": p99, "p999_us": p999}


def _delivered(frames: Frames, phases: Phases) -> dict[str, Any]:
    """What arrives between two looks at the clock, and how many numbers went by meanwhile."""
    torn, _, _, _ = _take_until(frames, phases.rate)
    began = clock()
    torn_too, received, first, last = _take_until(frames, phases.rate_end)
    seconds = (clock() - began) / _S
    return {
        "torn_rate": torn + torn_too,
        "received": received,
        "delivered_hz": received / seconds,
        "loss": 1 - received / (last - first + 1) if received else 1.0,
    }


def _take_until(frames: Frames, end: int) -> tuple[int, int, int, int]:
    """Frames torn and received, the first number and the last."""
    torn = received = first = last = 0
    while clock() < end:
        for words in itertools.islice(frames, _BETWEEN_LOOKS):
            if words is not None:
                number, last = words
                torn += number != last
                received += 1
                if received == 1:
                    first = number
    return torn, received, first, last


def keep_to_core(number: int) -> None:
    """A core of its own for the thread that works, where there are enough; the library's threads go anywhere.

    Two sides that spin on one core, because the scheduler put them there, measure the scheduler.
    """
    cores = sorted(os.sched_getaffinity(0))
    if number < len(cores):
        os.sched_setaffinity(0, cores[number : number + 1])


# --- words with the parent


def say(word: str) -> None:
    print(word, flush=True)


def read_start() -> int:
    line = sys.stdin.readline()
    if not line:
        # The parent is gone, so nobody waits for figures.
        raise SystemExit(1)
    return int(line)


def leave(_signal: int, _frame: FrameType | None) -> None:
    """An exception closes what is open on its way out; the default action would leave it behind."""
    raise SystemExit(1)


ROLES = {"producer": produce, "consumer": consume}


def obey_the_parent() -> None:
    signal.signal(signal.SIGTERM, leave)
    # Ctrl-C reaches the parent too, and it ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main() -> None:
    obey_the_parent()
    role, plan = sys.argv[1:]
    say(json.dumps(ROLES[role](Plan.from_json(plan))))


if __name__ == "__main__":
    main()
