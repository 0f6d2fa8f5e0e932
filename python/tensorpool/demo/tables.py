"""What the demo shows: the live table, and the ledger at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from .cast import Player


def live_table(camera: Player, viewers: Sequence[Player]) -> Table:
    """Rate, bandwidth, latency and drops by reason of each process."""
    table = Table(title="frames through shared memory")
    for column in ("process", "fps", "MiB/s", "latency", "frames", "torn"):
        table.add_column(column, justify="left" if column == "process" else "right")
    table.add_column("dropped", min_width=20)
    for player in (camera, *viewers):
        sample = player.heard("sample") or {}
        frames_hz, bytes_hz = player.rates()
        latency = sample.get("latency_us")
        table.add_row(
            player.name,
            f"{frames_hz:,.0f}",
            f"{bytes_hz / 2**20:,.0f}",
            "" if latency is None else f"{latency:,.0f} µs",
            f"{sample.get('frames', 0):,}",
            str(sample["torn"]) if "torn" in sample else "",
            in_words(sample.get("dropped", {})),
        )
    return table


def ledger_table(filmed: dict[str, Any], seen: dict[str, dict[str, Any]]) -> Table:
    """Every committed frame, joined with what became of it at each consumer."""
    table = Table(title="the ledger")
    for column in ("process", "frames", "=", "whole", "+ dropped", "by reason"):
        table.add_column(column, justify="left" if column in ("process", "by reason") else "right")
    unpublished = sum(filmed["unpublished"].values())
    table.add_row(
        "camera", f"{filmed['committed']:,}", "=", f"{filmed['published']:,}", f"{unpublished:,}",
        in_words(filmed["unpublished"]),
    )  # fmt: skip
    for name, ledger in seen.items():
        dropped = sum(ledger["dropped"].values())
        table.add_row(
            name,
            f"{ledger['span']:,}",
            "=",
            f"{ledger['received']:,}",
            f"{dropped:,}",
            in_words(ledger["dropped"]),
        )
    return table


def in_words(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in counts.items() if count)
