"""Definitions in TOML and Python, their errors, and the commands that need no Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tensorpool.cli import cli
from tensorpool.errors import InvalidConfig, PipelineError
from tensorpool.pipeline import Pipeline, load
from tensorpool.pipeline.builder import read_definition
from tensorpool.pipeline.definition import anchored, parse
from tensorpool.pipeline.schemas import parse_columns
from tests.unit.pipeline.harness import Stages, define, record

GOOD = """
[pipeline]
recordings = ["recording"]
out = "tables"
"""


def written(tmp_path: Path, more: str) -> Path:
    file = tmp_path / "pipeline.toml"
    file.write_text(GOOD + more)
    return file


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("pyload = 'ref'\n", r":5: pipeline.pyload: no such key; did you mean 'payload'"),
        ("payload = 'both'\n", r"pipeline.payload.*not one of ref, inline"),
        ("[[pipeline.rules]]\nstreams = [1]\n", r"rules\[?.?0.*has no requirement"),
        ("[[pipeline.rules]]\ndtype = ['int17']\n", r"int17"),
        ("[[pipeline.alignments]]\nname = 'a'\nstreams = [1]\n", r"streams.*at least two"),
        ("[[pipeline.alignments]]\nname = '../x'\nstreams = [1, 2]\n", r"name.*small letters"),
        ("[[pipeline.functions]]\nname = 'f'\nfunction = 'm'\ncolumns = 'a int'\n", r"module:function"),
        ("[[pipeline.functions]]\nname = 'f'\nfunction = 'm:f'\n", r"columns.*missing"),
        (
            "[[pipeline.functions]]\nname = 'quality'\nfunction = 'm:f'\ncolumns = 'a int'\n",
            r"use another name",
        ),
        ("[[pipeline.functions]]\nname = 'f'\nfunction = 'm:f'\ncolumns = 'a text'\n", r"not a column"),
        (
            "[[pipeline.functions]]\nname = 'f'\nfunction = 'm:f'\noutput = 'stream'\n",
            r"target_stream.*missing",
        ),
    ],
)
def test_definition_error_names_the_key(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=f"(?s){message}"):
        load(written(tmp_path, more), environ={})


def test_paths_are_relative_to_the_definition(tmp_path: Path) -> None:
    found = load(written(tmp_path, ""), environ={})
    assert (found.out, found.recordings) == (str(tmp_path / "tables"), (str(tmp_path / "recording"),))


def test_columns_have_sql_types() -> None:
    assert str(parse_columns("a double, b array<bigint>").field("b").type) == "list<element: int64>"


def test_python_definition_has_its_functions(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text(
        "from tensorpool.pipeline import Pipeline\n"
        "pipeline = Pipeline(recordings=['recording'], out='tables', quality={'interval': '1s'})\n"
        "pipeline.rule(dtype=['uint16'])\n"
        "pipeline.align('stereo', streams=[1, 2], tolerance='5ms')\n"
        "@pipeline.function(columns='mean double')\n"
        "def looks(array):\n    return array.mean()\n"
    )
    settings, callables = read_definition(file)
    assert (settings.out, settings.quality.interval_ns) == (str(tmp_path / "tables"), 10**9)
    assert (settings.functions[0].name, settings.alignments[0].tolerance) == ("looks", 5_000_000)
    assert callables["looks"].__name__ == "looks"
    with pytest.raises(InvalidConfig, match="recordings"):
        _ = Pipeline(out="x").settings
    file.write_text("pipeline = 1\n")
    with pytest.raises(PipelineError, match="no Pipeline named pipeline"):
        read_definition(file)


def test_init_validate_and_status_print_json_and_text(tmp_path: Path) -> None:
    run = CliRunner()
    root, out, file = tmp_path / "recording", tmp_path / "tables", tmp_path / "pipeline.toml"
    record(root, range(10))
    done = run.invoke(cli, ["pipeline", "init", str(file), "--recording", str(root), "--out", str(out)])
    assert (done.exit_code, done.stdout) == (0, "")
    assert run.invoke(cli, ["pipeline", "init", str(file)]).exit_code == 2, "it is left alone"
    done = run.invoke(cli, ["pipeline", "validate", str(file), "--json"])
    assert json.loads(done.stdout)["definition"]["out"] == str(out)
    file.write_text(
        file.read_text() + "[[pipeline.functions]]\nname='f'\nfunction='nowhere:f'\ncolumns='a int'\n"
    )
    done = run.invoke(cli, ["pipeline", "validate", str(file)])
    assert "No module named 'nowhere'" in str(done.exception)
    Stages(define(root, out)).take_all()
    found = json.loads(run.invoke(cli, ["pipeline", "status", str(out), "--json"]).stdout)
    assert found["stages"]["gold"]["batch"] == 0
    assert found["stages"]["silver"]["totals"]["frames"] == 10
    assert "10 frames" in run.invoke(cli, ["pipeline", "status", str(out)]).stdout
    done = run.invoke(cli, ["pipeline", "run", str(file), "--master", "local", "--remote", "sc://x"])
    assert done.exit_code == 2


def test_object_store_is_refused_where_a_directory_is_needed() -> None:
    with pytest.raises(InvalidConfig, match="credential"):
        parse({"pipeline": {"recordings": ["s3://key:secret@lake/x"], "out": "o"}})
    with pytest.raises(InvalidConfig, match="ftp:// is not supported"):
        parse({"pipeline": {"recordings": ["r"], "out": "ftp://lake/x"}})
    function = {"name": "f", "function": "a:b", "output": "recording"}
    with pytest.raises(InvalidConfig, match="recorded on a local disk"):
        parse({"pipeline": {"recordings": ["r"], "out": "s3://lake/x", "functions": [function]}})


def test_file_uri_of_a_definition_is_a_path(tmp_path: Path) -> None:
    settings = parse({"pipeline": {"recordings": ["file:///data/rec"], "out": "file:///data/tables"}})
    found = anchored(settings, tmp_path / "p.toml")
    assert (found.out, found.recordings) == ("/data/tables", ("/data/rec",))
