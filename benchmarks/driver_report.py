"""The driver's part of the report: rows of tables, and what was done to get them."""

from __future__ import annotations

import statistics
from typing import Any

from .driver_actor import GAP_NS
from .driver_growth import Growth
from .driver_restart import ANNOUNCE_PERIOD_S, Restarts

Rows = list[list[str]]
GROWTH_HEAD = ["a driver with", "attach µs", "p99 µs", "all at once µs"]
GROWTH_HEAD += ["memory MiB", "KiB each", "cores", "µs/s each", "open files"]
RESTART_HEAD = ["frames", "driver ends", "away ms", "without frames ms", "at most ms", "periods", "at most"]


def growth_rows(growth: Growth) -> Rows:
    """`each`: further stream with its two leases; further lease, where there is one stream."""
    rows = []
    for crowd in growth.crowds:
        if crowd not in growth.runs:
            continue
        rows.append(
            [
                str(crowd),
                _text(growth.median(crowd, "attach_us"), ",.0f"),
                _text(growth.median(crowd, "attach_p99_us"), ",.0f"),
                _text(growth.median(crowd, "at_once_us"), ",.0f"),
                _text(growth.median(crowd, "resident_bytes"), ".1f", 1 / (1 << 20)),
                _text(growth.each(crowd, "resident_bytes"), ".1f", 1 / (1 << 10)),
                _text(growth.median(crowd, "busy_cores"), ".3f"),
                _text(growth.each(crowd, "busy_cores"), ".0f", 1e6),
                _text(growth.median(crowd, "descriptors"), ",.0f"),
            ]
        )
    return rows


def growth_words() -> str:
    return (
        "Driver with many streams: in a process of its own, with small layouts; a producer's and a "
        "consumer's lease on each stream, or all leases on one, from one process that keeps them alive "
        "every second. Mean attach time, one after the other, and with all asking at once the whole time by "
        "the number of leases; memory (without the media driver's logs) and processor time of the driver's "
        "process in steady state, and what each stream beyond the first adds, or each lease where there is "
        "one stream. Growth is what is added for each in the largest crowd by that in the middle one: 1 is "
        "linear."
    )


def restart_rows(restarts: Restarts) -> Rows:
    rows = []
    for load, end in restarts.runs:
        without = restarts.without_ms(load, end)
        median, most = statistics.median(without), max(without)
        period_ms = ANNOUNCE_PERIOD_S * 1e3
        rows.append(
            [
                load,
                end,
                f"{restarts.away_ms(load, end):,.0f}",
                f"{median:,.0f}",
                f"{most:,.0f}",
                f"{median / period_ms:.2f}",
                f"{most / period_ms:.2f}",
            ]
        )
    return rows


def restart_words(restarts: Restarts) -> str:
    rounds = max((len(run["rounds"]) for run in restarts.runs.values()), default=0)
    return (
        f"Driver restart: median and most of two consumers, restarts: {rounds} of each kind, frames of "
        "64 KiB, default settings. The driver is ended and started again at once; it is away from the "
        f"signal until it is ready. Gaps of {GAP_NS // 1_000_000} ms and more are added up (the longest, if "
        f"all are shorter), and told in announce periods of {ANNOUNCE_PERIOD_S:g} s too."
    )


def growth_json(growth: Growth) -> list[dict[str, Any]]:
    return [
        {
            "streams": crowd.streams,
            "leases": crowd.leases,
            "runs": runs,
            "median": {key: growth.median(crowd, key) for key in runs[0]},
        }
        for crowd, runs in growth.runs.items()
    ]


def restart_json(restarts: Restarts) -> list[dict[str, Any]]:
    return [
        {"frames": load, "driver_ends": end, "announce_period_s": ANNOUNCE_PERIOD_S, **run}
        for (load, end), run in restarts.runs.items()
    ]


def _text(value: float | None, form: str, factor: float = 1.0) -> str:
    return "-" if value is None else format(value * factor, form)
