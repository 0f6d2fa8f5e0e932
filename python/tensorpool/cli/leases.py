"""Leases as a table, wherever a command shows them."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from .screen import columns, format_duration


def leases_table(leases: list[dict[str, Any]], *, with_stream: bool = False, are_over: bool = False) -> Table:
    """Rows of `leases()` of `service:driver`."""
    heads = ["lease", *(["stream"] if with_stream else []), "role", "client", "state", "held for"]
    heads += [] if are_over else ["left"]
    table = columns(*heads, right=("stream", "client", "held for", "left"))
    for one in leases:
        row = [str(one["lease_id"]), *([str(one["stream_id"])] if with_stream else [])]
        row += [one["role"], str(one["client_id"]), one["state"], format_duration(one["age_s"])]
        if not are_over:
            row.append("" if one["expires_in_s"] is None else format_duration(one["expires_in_s"]))
        table.add_row(*row)
    return table
