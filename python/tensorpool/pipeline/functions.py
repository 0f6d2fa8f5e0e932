"""Gold's functions, the part beside Spark's driver: statistics, and what the definition names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from . import layout
from .commit import Commit
from .definition import FunctionSettings, PipelineSettings
from .function_task import publish_work, recording_work, statistics_of, table_work
from .layout import Layout
from .table_files import StagedFile
from .tasks import Item, Tasks

_BUSY_NS: Final = 60_000_000_000
Callables = Mapping[str, Callable[..., Any]]
"""Functions that a Python definition has at hand, by their name in it."""


def statistics_step(
    settings: PipelineSettings, root: Path, silver: Commit, tasks: Tasks, staging: str
) -> list[StagedFile]:
    asked = settings.statistics
    items = _items(settings, root, silver, asked.streams, asked.every, staging)
    found = tasks.run(statistics_of, items)
    return [StagedFile.from_json(one) for result in found for one in result["files"]]


def function_step(
    one: FunctionSettings,
    settings: PipelineSettings,
    where: Layout,
    silver: Commit,
    state: dict[str, Any],
    tasks: Tasks,
    staging: str,
    *,
    key: str,
    place: str | None,
    function: Callable[..., Any] | None,
) -> tuple[list[StagedFile], dict[str, Any], int]:
    """Files of its table, what is remembered, and how many tensors it saw."""
    items = _items(settings, where.root, silver, one.streams, one.every, staging)
    for item in items:
        item |= {"function": one.function, "place": place}
    if one.output == "table":
        assert one.columns is not None, "the definition was checked"
        found = tasks.run(table_work(function, one.name, one.columns), items)
        files = [StagedFile.from_json(file) for result in found for file in result["files"]]
        return files, state, sum(result["rows"] for result in found)
    if one.output == "recording":
        return [], *_record(one, where, silver.batch, items, state, tasks, key, function)
    whole: Item = {
        **_item(settings, staging, one.every),
        "files": [file for item in items for file in item["files"]],
        "function": one.function,
        "place": place,
        "target_stream": one.target_stream,
        "key": key,
        "aeron_dir": None if one.aeron_dir is None else str(one.aeron_dir),
    }
    # One producer a stream: what is published goes through one task, in order.
    found = tasks.run(publish_work(function), [whole]) if whole["files"] else []
    return [], state, sum(result["rows"] for result in found)


def _record(
    one: FunctionSettings,
    where: Layout,
    batch: int,
    items: list[Item],
    state: dict[str, Any],
    tasks: Tasks,
    key: str,
    function: Callable[..., Any] | None,
) -> tuple[dict[str, Any], int]:
    """Through the sink's own commit: it knows which batches of this pipeline are in the recording."""
    from ..clock import SYSTEM_CLOCK
    from ..recording.layout import create_root
    from ..spark.commit import commit

    root = where.derived(one.name)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    create_root(root, created_ns=SYSTEM_CLOCK.wall_ns())
    for number, item in enumerate(items):
        item |= {
            "recording": str(root),
            "key": key,
            "batch": batch,
            "number": number,
            "target_stream": one.target_stream,
            "after": state.get("ends", {}),
        }
    found = tasks.run(recording_work(function), items)
    commit(root, key, batch, [result["name"] for result in found], epoch=None, busy_ns=_BUSY_NS)
    ends = dict(state.get("ends", {}))
    for result in found:
        for stream, end in result["ends"].items():
            ends[stream] = max(ends.get(stream, end), end)
    return {"ends": ends}, sum(result["rows"] for result in found)


def _item(settings: PipelineSettings, staging: str, every: int) -> Item:
    return {"every": every, "staging": staging, "target_bytes": settings.target_file_bytes}


def _items(
    settings: PipelineSettings, root: Path, silver: Commit, streams: tuple[int, ...], every: int, staging: str
) -> list[Item]:
    """A task for each file of silver frames that is wanted."""
    found = []
    for file in silver.of(layout.SILVER_FRAMES):
        stream = int(file["partition"]["stream_id"])
        if not streams or stream in streams:
            files = [[stream, str(root / file["path"])]]
            found.append({**_item(settings, staging, every), "files": files})
    return found
