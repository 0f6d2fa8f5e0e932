"""Files as part of a Delta table, once for each micro-batch. Needs `deltalake`; no jar is involved.

The transaction carries the pipeline's id and the batch's number: a batch that is in is known by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ..errors import MissingPackage
from .schemas import Table

_KEPT_HOURS: Final = 24
"""Files that were merged can be read as long, by who began before."""


def require() -> None:
    """Raises MissingPackage where Delta tables cannot be written."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise MissingPackage("Delta tables need a package: pip install 'aeron-tensorpool[delta]'") from error


def add_files(root: Path, table: Table, files: Sequence[dict[str, Any]], app: str, batch: int) -> None:
    """Adds files that lie in the table's directory already, unless this batch did so before."""
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.transaction import AddAction, RemoveAction

    place = str(root / table.name)
    # Plain metadata only: what is in the files' own schema is no concern of the table's.
    schema = table.whole
    if DeltaTable.is_deltatable(place):
        found = DeltaTable(place)
        if (done := found.transaction_version(app)) is not None and done >= batch:
            return
    else:
        found = DeltaTable.create(place, schema, mode="ignore", partition_by=list(table.partitions))
    actions: list[AddAction | RemoveAction] = [
        AddAction(
            str(Path(one["path"]).relative_to(table.name)),
            one["bytes"],
            dict(one["partition"]),
            0,
            True,
            "{}",
        )
        for one in files
    ]
    found.create_write_transaction(
        actions,
        "append",
        schema,
        list(table.partitions),
        commit_properties=CommitProperties(app_transactions=[Transaction(app, batch)]),
    )


def compact(place: Path, target_bytes: int, dates: Sequence[tuple[str, str, str]]) -> tuple[int, int]:
    """Merges small files of a table, of some days where it has such; gives how many became how many. Its
    transactions, and what they say of batches, stay."""
    from deltalake import DeltaTable

    found = DeltaTable(str(place))
    has_days = "date" in found.metadata().partition_columns
    # One at a time: each merges in memory, and the tasks of Spark want some too.
    done = found.optimize.compact(
        partition_filters=list(dates) if has_days and dates else None,
        target_size=target_bytes,
        max_concurrent_tasks=1,
    )
    found.vacuum(_KEPT_HOURS, dry_run=False, enforce_retention_duration=False)
    return int(done["numFilesRemoved"]), int(done["numFilesAdded"])
