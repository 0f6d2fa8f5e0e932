"""Joined pairs of two streams, compared with a loop in Python over two consumers; eight streams joined by
time; and a limiter: its rate, and its cost compared with a loop that copies.

All in one process. Rounds of the join and of the loop alternate, so that a slow moment of the machine affects
both: frames are offered to both streams, then a reader takes all of them, and only that is timed. Every
reader does the same with a pair: it makes both arrays, reads their first and last bytes, and proves both
frames.
"""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorpool as tp
from tensorpool import _native

from .dataplane import Run, Settings, measure_undisturbed, show_progress
from .targets import Target

HEAD = [
    "pairs of 64 KiB",
    "in batches µs",
    "one by one µs",
    "with for µs",
    "loop µs",
    "loop without counts µs",
    "join p50 µs",
    "one stream p50 µs",
    "limiter µs",
    "copying loop µs",
    "limiter Hz of 100",
    "8 at 10 kHz: results /s",
    "not joined",
    "growth MiB",
]
NOTE = (
    "Joins: pairs by sequence, time of the reader for each pair with poll_batch(), with poll() and with a "
    "for loop over the join, beside a loop in Python with two consumers, each with both arrays made, "
    "read and proven. The loop has a dict for each stream, of bounded size, and counts what it drops, by "
    "reason. The loop without counts has one dict, where frames without a partner stay. Time of a "
    "receive after both frames were offered, beside a consumer of the later stream alone; time of a limiter "
    "for each frame, beside a loop in Python that offers each frame on the destination; rate of a limiter to "
    "100 frames a second of a source with 1000, "
    "over a minute in the first run; eight streams of 10,000 frames a second joined by time, the share of "
    "frames that were not joined, and what the private memory of the process has grown by meanwhile (its "
    "shared memory grows until each page of rings and log buffers was touched once)."
)
_FRAME_BYTES = 64 * 1024
_ROUND = 64
"""Pairs of one round: half of the rings, so that none is overwritten before it was read."""
_MAX_WAITING = 1024
"""Frames that the loop keeps of one stream: as many as a join does by default."""
_MAX_ADDED_US = 20.0
_MAX_GROWTH_MIB = 1.0
_LEFT, _RIGHT, _DESTINATION, _EIGHT = 20_000, 20_001, 30_000, 40_000
_INPUTS, _INPUT_HZ, _BLOCK = 8, 10_000, 20
_LIMIT_HZ = 100
_MAX_POLLS = 100_000
_WAIT_S = 60.0


@dataclass(slots=True)
class JoinCosts:
    """All runs."""

    runs: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def median(self, key: str) -> float | None:
        """Median of a value over the runs."""
        return statistics.median(run[key] for run in self.runs) if self.runs else None

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for run in self.runs), default=None)

    def targets(self) -> list[Target]:
        """The join is twice as fast as the loop, adds little latency and does not grow; limits are kept."""
        if not self.runs:
            return []
        faster = statistics.median(run["loop_us"] / run["batch_us"] for run in self.runs)
        singly = statistics.median(run["loop_us"] / run["join_us"] for run in self.runs)
        uncounted = statistics.median(run["plain_loop_us"] / run["batch_us"] for run in self.runs)
        added_us = statistics.median(run["join_p50_us"] - run["one_p50_us"] for run in self.runs)
        growth = self.median("eight_growth")
        cost = statistics.median(run["limiter_us"] / run["copy_us"] for run in self.runs)
        rate = self.runs[0]["limiter_hz"] / _LIMIT_HZ
        return [
            Target("joined pairs, 64 KiB", "a loop over two consumers", 2.0, False, faster),
            Target("joined pairs one by one, 64 KiB", "a loop over two consumers", 1.0, False, singly),
            Target("joined pairs, 64 KiB", "a loop that counts nothing", 2.0, False, uncounted),
            Target("added latency of a join, p50", "20 µs", 1.0, True, added_us / _MAX_ADDED_US),
            Target("growth, 8 inputs at 10 kHz", "1 MiB", 1.0, True, (growth or 0.0) / _MAX_GROWTH_MIB),
            Target("cost of a limiter, 64 KiB", "a copying loop", 1.2, True, cost),
            Target("rate of a limiter, above", "its limit", 1.01, True, rate),
            Target("rate of a limiter, below", "its limit", 0.99, False, rate),
        ]

    def rows(self) -> list[list[str]]:
        """Rows of the table."""
        keys = (
            "batch_us",
            "join_us",
            "for_us",
            "loop_us",
            "plain_loop_us",
            "join_p50_us",
            "one_p50_us",
            "limiter_us",
            "copy_us",
        )
        values = [self.median(key) for key in keys]
        first = self.runs[0] if self.runs else {}
        cells = ["-" if value is None else f"{value:.2f}" for value in values]
        cells.append(f"{first['limiter_hz']:.2f}" if first else "-")
        for key, form in (("eight_hz", ",.0f"), ("eight_unjoined", ".2%"), ("eight_growth", ".1f")):
            value = self.median(key)
            cells.append("-" if value is None else format(value, form))
        return [["by sequence", *cells]]


def measure(settings: Settings) -> JoinCosts:
    """Measures all runs."""
    costs = JoinCosts()
    deadline = time.monotonic() + settings.patience_s
    for number in range(settings.runs):
        show_progress(f"run {number + 1} of {settings.runs}: joins")
        try:
            costs.runs.append(
                measure_undisturbed(
                    lambda directory: _run(directory, settings.is_quick, is_first=not costs.runs), deadline
                )
            )
        except tp.TensorPoolError as error:
            costs.failures.append(f"joins: {error}")
    show_progress("")
    return costs


def _run(directory: str, is_quick: bool, is_first: bool) -> Run:
    options: dict[str, Any] = {"pools": [_FRAME_BYTES], "nslots": 128}
    frame = np.zeros(_FRAME_BYTES, np.uint8)
    inputs = {"left": _LEFT, "right": _RIGHT}
    with (
        tp.open(aeron_dir=f"{directory}/aeron", shm_base_dir=directory) as ctx,
        ctx.producer(_LEFT, **options) as left,
        ctx.producer(_RIGHT, **options) as right,
        ctx.join(inputs, consumer={"idle": "busy-spin"}, idle="busy-spin", timeout=_WAIT_S) as join,
        ctx.consumer(_LEFT, idle="busy-spin") as one,
        ctx.consumer(_RIGHT, idle="busy-spin") as other,
    ):
        join.wait_for_producers()
        one.wait_for_producer()
        other.wait_for_producer()

        def offer(count: int) -> None:
            for _ in range(count):
                left.offer(frame)
                right.offer(frame)

        def drain() -> None:
            for reader in (join, one, other):
                # A poll reads messages of both streams, and may find none of its own among them.
                while reader.poll() or reader.poll():
                    pass

        def with_join() -> int:
            pairs = 0
            for joined in join.poll(_ROUND):
                with joined:
                    pairs += _is_pair(joined["left"].array, joined["right"].array)
            return pairs

        def with_for() -> int:
            pairs = 0
            for joined in join:
                with joined:
                    pairs += _is_pair(joined["left"].array, joined["right"].array)
                if pairs == _ROUND:
                    break
            return pairs

        def with_batches() -> int:
            batch = join.poll_batch(_ROUND)
            if batch is None:
                return 0
            with batch:
                lefts, rights = batch["left"], batch["right"]
                is_pair = (lefts[:, 0] == rights[:, 0]) & (lefts[:, -1] == rights[:, -1])
            return int(np.count_nonzero(is_pair))

        lefts: dict[int, tp.Frame] = {}
        rights: dict[int, tp.Frame] = {}
        dropped: Counter[str] = Counter()

        def with_loop() -> int:
            pairs = 0
            # Either stream may be ahead.
            for consumer, own, others in ((one, lefts, rights), (other, rights, lefts)):
                for frame in consumer.poll():
                    seq = frame.seq
                    partner = others.pop(seq, None)
                    if partner is None:
                        own[seq] = frame
                        if len(own) > _MAX_WAITING:
                            del own[next(iter(own))]
                            dropped["overflow"] += 1
                        continue
                    is_pair = _is_pair(partner.array, frame.array)
                    if partner.valid() and frame.valid():
                        pairs += is_pair
                    else:
                        dropped["overwritten"] += 1
                    # Sequences grow: earlier frames find no partner any more.
                    for earlier in (own, others):
                        while earlier and (oldest := next(iter(earlier))) < seq:
                            del earlier[oldest]
                            dropped["unmatched"] += 1
            return pairs

        waiting: dict[int, tp.Frame] = {}

        def with_plain_loop() -> int:
            pairs = 0
            for consumer in (one, other):
                for frame in consumer.poll():
                    partner = waiting.pop(frame.seq, None)
                    if partner is None:
                        waiting[frame.seq] = frame
                    else:
                        with partner, frame:
                            pairs += _is_pair(partner.array, frame.array)
            return pairs

        rounds = 20 if is_quick else 200
        offer(_ROUND)
        drain()
        readers = {
            "batch_us": with_batches,
            "join_us": with_join,
            "for_us": with_for,
            "loop_us": with_loop,
            "plain_loop_us": with_plain_loop,
        }
        times: dict[str, list[float]] = {key: [] for key in readers}
        for _ in range(rounds):
            for key, read in readers.items():
                offer(_ROUND)
                times[key].append(_time_us(read) / _ROUND)
                drain()
                if waiting or lefts or rights or dropped:
                    raise tp.TensorPoolError(f"a loop has lost frames: {dropped}")
        latencies: dict[str, list[float]] = {"join_p50_us": [], "one_p50_us": []}
        receivers = {"join_p50_us": join.receive_or_none, "one_p50_us": other.receive_or_none}
        for _ in range(20 if is_quick else 2000):
            for key, receive in receivers.items():
                offer(1)
                begin_ns = time.perf_counter_ns()
                receive(1.0)
                latencies[key].append((time.perf_counter_ns() - begin_ns) / 1000)
                drain()
        measured = {key: statistics.median(values) for key, values in {**times, **latencies}.items()}
        measured |= _limiter_cost(ctx, left, frame, rounds)
        measured["limiter_hz"] = _limiter_hz(ctx, left, frame, 0.5 if is_quick else 60.0 if is_first else 2.0)
        measured |= _join_eight(ctx, 0.3 if is_quick else 5.0)
        return measured


def _limiter_cost(ctx: tp.Context, source: tp.Producer, frame: Any, rounds: int) -> Run:
    """Time for each frame of a limiter that lets all pass, and of a loop that offers each frame again.

    Taken from the times of publication, so that neither waits for the other frames to be offered.
    """
    times: dict[str, list[float]] = {"limiter_us": [], "copy_us": []}
    options: Any = {"pools": [_FRAME_BYTES], "nslots": 128, "publish_timestamps": True}
    with (
        ctx.producer(_DESTINATION, **options) as limited,
        ctx.producer(_DESTINATION + 1, **options) as copied,
        ctx.consumer(source.stream_id) as to_limiter,
        ctx.consumer(source.stream_id) as to_loop,
        ctx.consumer(_DESTINATION) as from_limiter,
        ctx.consumer(_DESTINATION + 1) as from_loop,
    ):
        for consumer in (to_limiter, to_loop, from_limiter, from_loop):
            consumer.wait_for_producer()
        limiters = [_native.StreamLimiter(to_limiter, limited, 0, "busy-spin")]

        def limit() -> None:
            limiters[0].run(0.002)

        def copy() -> None:
            for each in to_loop.poll():
                copied.offer(each.array)

        passes = (("limiter_us", limit, from_limiter), ("copy_us", copy, from_loop))
        for _ in range(rounds):
            for key, run, arrived in passes:
                for _ in range(_ROUND):
                    source.offer(frame)
                published: list[int] = []
                for _ in range(_MAX_POLLS):
                    run()
                    published += [each.publish_timestamp_ns or 0 for each in arrived.poll()]
                    if len(published) >= _ROUND:
                        break
                times[key].append((published[-1] - published[0]) / 1000 / (len(published) - 1))
                # The other one has read the same frames, and starts with the next ones.
                while to_loop.poll():
                    pass
                limit()
                while from_limiter.poll() or from_loop.poll():
                    pass
        # It counts the frame that it holds in the ledger of its consumer, before that is closed.
        limiters.clear()
    return {key: statistics.median(values) for key, values in times.items()}


def _join_eight(ctx: tp.Context, seconds: float) -> Run:
    """Eight streams of 10,000 frames a second by time: results, frames that were not joined, growth."""
    period_ns = 1_000_000_000 // _INPUT_HZ
    rng = np.random.default_rng(7)
    jitter = rng.integers(0, period_ns // 4, (_INPUTS, _BLOCK))
    block = np.zeros((_BLOCK, 64), np.uint8)
    with ExitStack() as stack:
        producers = [
            stack.enter_context(ctx.producer(_EIGHT + number, pools=[64], nslots=4096))
            for number in range(_INPUTS)
        ]
        inputs = {f"input-{number}": _EIGHT + number for number in range(_INPUTS)}
        joined = stack.enter_context(ctx.join(inputs, by="time", tolerance=period_ns / 2e9))
        joined.wait_for_producers()
        begin_ns, grown_from, blocks = time.monotonic_ns(), 0.0, 0
        while (now_ns := time.monotonic_ns()) < begin_ns + seconds * 1e9:
            due = int((now_ns - begin_ns) / period_ns / _BLOCK)
            while blocks < due:
                times_ns = begin_ns + (blocks * _BLOCK + np.arange(_BLOCK)) * period_ns
                for number, producer in enumerate(producers):
                    producer.offer_many(block, timestamps_ns=times_ns + jitter[number])
                blocks += 1
                while joined.poll():
                    pass
            if not grown_from and now_ns > begin_ns + seconds * 2e8:
                # Buffers have grown to what the streams need.
                grown_from = _private_mib()
            time.sleep(0.0005)
        while joined.poll():
            pass
        ledger = joined.ledger()
        offered = blocks * _BLOCK * _INPUTS
        in_results = sum(each.joined for each in ledger.inputs.values())
        return {
            "eight_hz": ledger.results / seconds,
            "eight_unjoined": 1 - in_results / offered if offered else 1.0,
            "eight_growth": _private_mib() - grown_from,
        }


def _private_mib() -> float:
    """Memory of this process that is not shared."""
    match = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"), re.MULTILINE)
    return int(match[1]) / 1024 if match else 0.0


def _is_pair(left: npt.NDArray[np.uint8], right: npt.NDArray[np.uint8]) -> bool:
    """Whether the first and the last bytes of both are equal: what each reader does with a pair."""
    return bool(left[0] == right[0] and left[-1] == right[-1])


def _time_us(read: Callable[[], int]) -> float:
    """Time of one round, until all pairs are found."""
    begin_ns = time.perf_counter_ns()
    pairs, polls = 0, 0
    while pairs < _ROUND:
        pairs += read()
        polls += 1
        if polls > _MAX_POLLS:
            raise tp.ReceiveTimeout(f"{pairs} pairs of {_ROUND}", stream_id=_LEFT)
    return (time.perf_counter_ns() - begin_ns) / 1000


def _limiter_hz(ctx: tp.Context, source: tp.Producer, frame: Any, seconds: float) -> float:
    """Frames a second behind a limiter, between the first and the last."""
    with (
        tp.Limiter(ctx, source.stream_id, _DESTINATION, max_rate_hz=_LIMIT_HZ) as limiter,
        ctx.consumer(_DESTINATION) as consumer,
    ):
        limiter.wait_ready()
        consumer.wait_for_producer()
        arrivals: list[int] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            source.offer(frame)
            arrivals += [time.monotonic_ns() for _ in consumer.poll()]
            time.sleep(0.001)
    span_s = (arrivals[-1] - arrivals[0]) / 1e9 if len(arrivals) > 1 else 0.0
    return (len(arrivals) - 1) / span_s if span_s else 0.0
