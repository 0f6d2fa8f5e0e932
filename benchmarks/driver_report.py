"""The driver's sections of the report: rows, notes and JSON."""

from __future__ import annotations

import statistics
from typing import Any

from .driver_client import GAP_NS
from .driver_growth import Growth
from .driver_restart import ANNOUNCE_PERIOD_S, Restarts

Rows = list[list[str]]
GROWTH_HEAD = ["a driver with", "attach µs", "p99 µs", "all at once µs"]
GROWTH_HEAD += ["memory MiB", "KiB each", "cores", "µs/s each", "open files"]
RESTART_HEAD = ["frames", "driver ends", "down ms", "without frames ms", "at most ms", "periods", "at most"]


def growth_rows(growth: Growth) -> Rows:
    """Rows of the table of loads. `each` is a further stream with its two leases, or a further lease of one
    stream."""
    rows = []
    for size in growth.sizes:
        if size not in growth.runs:
            continue
        rows.append(
            [
                str(size),
                _text(growth.median(size, "attach_us"), ",.0f"),
                _text(growth.median(size, "attach_p99_us"), ",.0f"),
                _text(growth.median(size, "at_once_us"), ",.0f"),
                _text(growth.median(size, "resident_bytes"), ".1f", 1 / (1 << 20)),
                _text(growth.each(size, "resident_bytes"), ".1f", 1 / (1 << 10)),
                _text(growth.median(size, "busy_cores"), ".3f"),
                _text(growth.each(size, "busy_cores"), ".0f", 1e6),
                _text(growth.median(size, "descriptors"), ",.0f"),
            ]
        )
    return rows


def growth_note() -> str:
    """How the loads were measured."""
    return (
        "Driver with many streams: in its own process, with small layouts; a producer's and a consumer's "
        "lease on each stream, or all leases on one stream, held by one process with a keepalive every "
        "second. Mean attach time with one request at a time, and with all requests at once the total time "
        "divided by the number of leases; memory (without the media driver's log buffers) and processor "
        "time of the driver's process in steady state, and the cost of each stream beyond the first, or of "
        "each lease with one stream. Growth is that cost at the largest load divided by that at the middle "
        "load: 1 is linear."
    )


def restart_rows(restarts: Restarts) -> Rows:
    """Rows of the table of restarts."""
    rows = []
    for load, end in restarts.runs:
        without = restarts.without_ms(load, end)
        median, longest = statistics.median(without), max(without)
        period_ms = ANNOUNCE_PERIOD_S * 1e3
        rows.append(
            [
                load,
                end,
                f"{restarts.down_ms(load, end):,.0f}",
                f"{median:,.0f}",
                f"{longest:,.0f}",
                f"{median / period_ms:.2f}",
                f"{longest / period_ms:.2f}",
            ]
        )
    return rows


def restart_note(restarts: Restarts) -> str:
    """How the restarts were measured."""
    rounds = max((len(run["rounds"]) for run in restarts.runs.values()), default=0)
    return (
        f"Driver restart: median and maximum of two consumers, {rounds} restarts of each kind, frames of "
        "64 KiB, default settings. The driver is ended and started again at once; it is down from the "
        f"signal until it is ready. Gaps of {GAP_NS // 1_000_000} ms and more are added up (if all are "
        f"shorter, the longest counts), and also shown in announce periods of {ANNOUNCE_PERIOD_S:g} s."
    )


def growth_json(growth: Growth) -> list[dict[str, Any]]:
    """All loads as JSON."""
    return [
        {
            "streams": size.streams,
            "leases": size.leases,
            "runs": runs,
            "median": {key: growth.median(size, key) for key in runs[0]},
        }
        for size, runs in growth.runs.items()
    ]


def restart_json(restarts: Restarts) -> list[dict[str, Any]]:
    """All restarts as JSON."""
    return [
        {"frames": load, "driver_ends": end, "announce_period_s": ANNOUNCE_PERIOD_S, **run}
        for (load, end), run in restarts.runs.items()
    ]


def _text(value: float | None, form: str, factor: float = 1.0) -> str:
    return "-" if value is None else format(value * factor, form)
