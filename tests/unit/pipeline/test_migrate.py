"""The migration of a root of version 1, which is laid out here as that version wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from tensorpool.cli import cli
from tensorpool.errors import PipelineError
from tensorpool.pipeline import migrate, status
from tensorpool.pipeline.decisions import last_decision
from tensorpool.pipeline.definition import PipelineSettings
from tensorpool.pipeline.engine import tables_of
from tensorpool.pipeline.status import counts_of
from tensorpool.recording.table_store import open_store
from tests.unit.pipeline.harness import Stages, define, keys, record, table, tables

ALIGNMENT = [{"name": "stereo", "streams": [10, 11], "tolerance": "1ms", "wait": "100ms"}]


def as_version_1(settings: PipelineSettings, old: Path) -> None:
    """Writes the tables and the state of a root as plain files by stream and day, with commits."""
    decision = last_decision(open_store(settings.out))
    assert decision is not None
    for name in tables(settings):
        target = "gold/quality" if name == "gold/quality_open" else name
        rows = DeltaTable(f"{settings.out}/{name}").to_pyarrow_table()
        dates = rows["date"].unique().to_pylist() if "date" in rows.schema.names else [None]
        by_stream = "stream_id" in rows.schema.names and name not in ("gold/quality", "gold/quality_open")
        by_stream &= name not in ("bronze/metadata", "silver/unaligned/stereo")
        streams = rows["stream_id"].unique().to_pylist() if by_stream else [None]
        for day in dates:
            for stream in streams:
                part = rows
                place = old / target
                if stream is not None:
                    part, place = (
                        part.filter(_equal(part, "stream_id", stream)),
                        place / f"stream_id={stream}",
                    )
                    part = part.drop_columns(["stream_id"])
                if day is not None:
                    part = part.filter(_equal(part, "date", day)).drop_columns(["date"])
                    place = place / f"date={day}"
                if name == "bronze/frames":
                    part = part.drop_columns(["time"])
                place.mkdir(parents=True, exist_ok=True)
                pq.write_table(part, place / f"b{name.replace('/', '-')}.parquet")
    memory = decision.memory.to_json()
    states: dict[str, Any] = {
        "bronze": {"places": memory["metadata_offsets"]},
        "silver": {
            "seen": memory["seen"], "accounted": memory["accounted"], "notes": memory["metadata"],
            "last": memory["last_frames"],
        },
        "align": {"through": 0, "alignments": memory["alignments"], "carried": {}},
        "gold": {"places": memory["positions"], "traces": memory["traces"], "functions": {}, "carried": {}},
    }  # fmt: skip
    for kind, name in memory["carried"].items():
        content = open_store(settings.out).get(name)
        assert content is not None
        path = old / "_state" / f"{kind}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.ipc.open_file(pa.BufferReader(content)).read_all(), path)
        stage, key = ("gold", "quality-0") if kind == "quality" else ("align", kind.removeprefix("align-"))
        states[stage]["carried"][key] = [f"_state/{kind}.parquet"]
    for stage, state in states.items():
        record_of = decision.stages[stage]
        commit = {
            "stage": stage, "batch": 0, "files": [], "state": state,
            "totals": counts_of(stage, record_of.totals),
            "rows": record_of.rows, "bytes": record_of.bytes, "seconds": 0.1, "at_ns": 5,
        }  # fmt: skip
        place = old / "_commits" / stage
        place.mkdir(parents=True)
        (place / "000000000000.json").write_text(json.dumps(commit))
    offsets = old / "_checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    lines = [json.dumps(memory["offsets"][str(root)]) for root in settings.recordings]
    (offsets / "0").write_text("\n".join(["v1", "{}", *lines]))
    definition = {
        "recordings": [str(root) for root in settings.recordings], "out": str(old), "format": "parquet",
        "alignments": ALIGNMENT, "quality": {"interval": "500ms", "lateness": "100ms"},
    }  # fmt: skip
    marker = {"format": "tensorpool-pipeline", "id": "old", "definition": definition}
    versions = {"bronze": 1, "silver": 1, "gold": 1}
    (old / "pipeline.json").write_text(json.dumps({**marker, "versions": versions}))


def _equal(rows: Any, name: str, value: Any) -> Any:
    return pc.equal(rows[name], value)


def test_migrated_root_has_all_rows_and_continues(root: Path, out: Path, tmp_path: Path) -> None:
    record(root, range(100))
    record(root, [seq for seq in range(100) if seq % 9], stream_id=11, shift_ns=1000)
    more: dict[str, Any] = {"alignments": ALIGNMENT, "quality": {"interval": "500ms", "lateness": "100ms"}}
    settings = define(root, out, **more)
    Stages(settings).take_all()
    old, new = tmp_path / "old", tmp_path / "new"
    as_version_1(settings, old)
    with pytest.raises(PipelineError, match=r"tensorpool pipeline migrate"):
        status(old)
    done = CliRunner().invoke(cli, ["pipeline", "migrate", str(old), str(new), "--json"])
    assert done.exit_code == 0, done.output
    counts = json.loads(done.stdout)
    assert counts["silver/frames"] == 188
    migrated = define(root, new, **more)
    assert tables(migrated) == tables(settings) == list(tables_of(settings))
    for name in tables(settings):
        found, wanted = (sorted(map(repr, table(each, name))) for each in (migrated, settings))
        assert found == wanted, name
    # Both continue in the same way, from the same frame.
    record(root, range(100, 150))
    record(root, range(100, 150), stream_id=11, shift_ns=1000)
    for each in (settings, migrated):
        stages = Stages(each)
        stages.take_all()
        stages.close()
    assert len(keys(table(migrated, "silver/frames"))) == 288
    for name in tables(settings):
        found, wanted = (sorted(map(repr, table(each, name))) for each in (migrated, settings))
        assert found == wanted, name
    assert status(new).stages["silver"].totals == status(out).stages["silver"].totals
    with pytest.raises(PipelineError, match="is not empty"):
        migrate(old, str(new))
    with pytest.raises(PipelineError, match="nothing to migrate"):
        migrate(new, str(tmp_path / "newer"))
