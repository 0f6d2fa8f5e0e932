"""SQL over the tables of a root, and the statements that register them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tensorpool.cli import cli
from tensorpool.errors import PipelineError
from tensorpool.pipeline import create_statements, list_tables, query
from tests.s3_server import S3Server
from tests.unit.pipeline.harness import Stages, define, record

ALIGNMENT = [{"name": "left-right", "streams": [10, 11], "tolerance": "1ms"}]
SQL = "select stream_id, count(*) as n, sum(seq) as total from silver_frames group by stream_id"


def test_query_reads_tables_on_a_disk_and_in_a_store(root: Path, out: Path, s3_server: S3Server) -> None:
    record(root, range(30))
    for where in (str(out), s3_server.uri("tables")):
        Stages(replace(define(root, out), out=where)).take_all()
        done = CliRunner().invoke(cli, ["pipeline", "sql", where, SQL, "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == [{"stream_id": 10, "n": 30, "total": sum(range(30))}]


def test_table_without_rows_is_readable(root: Path, out: Path) -> None:
    record(root, range(10))
    settings = define(root, out, alignments=ALIGNMENT)
    Stages(settings).take_all()
    for name in ("silver_rejects", "silver_unaligned_left_right", "silver_gaps", "bronze_metadata"):
        (batch,) = query(out, f"select count(*) as n from {name}")
        assert batch["n"].to_pylist() == [0], name
    names = {table.table: table.name for table in list_tables(out)}
    assert names["silver/aligned/left-right"] == "silver_aligned_left_right"


def test_rows_are_shown_with_short_bytes(root: Path, out: Path) -> None:
    record(root, range(20))
    Stages(define(root, out, payload="inline")).take_all()
    sql = "select seq, payload from bronze_frames order by seq"
    done = CliRunner().invoke(cli, ["pipeline", "sql", str(out), sql, "--limit", "3"])
    assert done.exit_code == 0, done.output
    assert "64 bytes" in done.output
    assert "only the first 3 rows" in done.stderr
    whole = CliRunner().invoke(cli, ["pipeline", "sql", str(out), sql, "--json"])
    assert [row["seq"] for row in json.loads(whole.stdout)] == list(range(20))
    # The tables, without a query.
    done = CliRunner().invoke(cli, ["pipeline", "sql", str(out), "--json"])
    assert "silver_frames" in {entry["name"] for entry in json.loads(done.stdout)}


def test_wrong_query_names_the_tables(root: Path, out: Path) -> None:
    record(root, range(5))
    Stages(define(root, out)).take_all()
    done = CliRunner().invoke(cli, ["pipeline", "sql", str(out), "select nothing from nowhere"])
    assert done.exit_code == 1
    assert isinstance(done.exception, PipelineError | SystemExit)
    with pytest.raises(PipelineError, match=r"nowhere.*The tables are .*silver_frames"):
        list(query(out, "select nothing from nowhere"))


def test_statements_register_every_table(root: Path, out: Path) -> None:
    record(root, range(5))
    Stages(define(root, out)).take_all()
    done = CliRunner().invoke(cli, ["pipeline", "sql", str(out), "--create", "delta"])
    frames = f"CREATE TABLE IF NOT EXISTS silver_frames USING delta LOCATION '{out}/silver/frames';"
    assert frames in done.stdout.splitlines()
    assert len(done.stdout.splitlines()) == len(list_tables(out))
    (own,) = [text for text in create_statements(out, using="tensorpool") if "silver_frames" in text]
    assert own == (
        f"CREATE TABLE IF NOT EXISTS silver_frames USING tensorpool OPTIONS (table 'silver/frames') "
        f"LOCATION '{out}';"
    )
    assert all(
        "lab.main.silver" in text or "silver" not in text.split(" USING")[0]
        for text in create_statements(out, database="lab.main")
    )
    with pytest.raises(PipelineError, match="is not a database"):
        list(create_statements(out, database="x; drop table y"))
