"""The JSON Schema of the configuration, applied to every configuration of the documentation."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from tensorpool.cli import cli
from tensorpool.cli import config as config_command
from tensorpool.runtime.config import ROLES, Config
from tensorpool.runtime.config.spec import RESERVED

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def validator() -> Any:
    """A validator with the schema that the command prints."""
    done = CliRunner().invoke(cli, ["config", "schema"])
    assert done.exit_code == 0, done.output
    schema = json.loads(done.output)
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def faults(validator: Any, text: str) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(tomllib.loads(text))]


def documented() -> list[Any]:
    """The configurations of the documentation and the examples."""
    found = [
        pytest.param(path.read_text("utf-8"), id=str(path.relative_to(ROOT)))
        for path in sorted((ROOT / "examples").rglob("*.toml"))
    ]
    for page in sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]):
        blocks = re.findall(r"^```toml[^\n]*\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
        found += [
            pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
            for number, block in enumerate(blocks)
        ]
    return found


@pytest.mark.parametrize("text", documented())
def test_documented_configurations_are_valid(validator: Any, text: str) -> None:
    assert faults(validator, text) == []


def test_documentation_has_configurations() -> None:
    assert len(documented()) >= 10


def test_schema_covers_every_table(validator: Any) -> None:
    own = {role for role, cls in ROLES.items() if cls.__module__.startswith("tensorpool.")}
    assert set(validator.schema["properties"]) == own | RESERVED
    assert {"driver", "recorder", "bridge", "log"} <= own


@pytest.mark.parametrize(
    "role",
    [
        "aeron",
        "context",
        "discovery",
        "driver",
        "log",
        "metrics",
        "registry",
        "runtime",
        "service",
        "shm",
        "supervisor",
    ],
)
def test_printed_configuration_is_valid(validator: Any, role: str) -> None:
    """The defaults, in the form in which `--print-config` writes them."""
    text = Config.load(ROLES[role], environ={}).to_toml()
    assert faults(validator, text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[driver]\nleases = 1", "$.driver: Additional properties"),
        ("[drive]", "$: Additional properties"),
        ('[log]\nlevel = "loud"', "$.log.level: 'loud' is not one of"),
        ('[aeron]\nannounce_period = "5 parsecs"', "$.aeron.announce_period: "),
        ("[registry]\nmax_streams = 1.5", "$.registry.max_streams: "),
        ("[[driver.streams]]\nname = 'a'", "$.driver.streams[0]: 'stream_id' is a required property"),
        ("[runtime]\nidle_period = 5", "$.runtime.idle_period: "),
    ],
)
def test_mistakes_are_found(validator: Any, text: str, expected: str) -> None:
    found = faults(validator, text)
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_every_key_is_described(validator: Any) -> None:
    def walk(schema: dict[str, Any], path: str) -> None:
        for key, inner in schema.get("properties", {}).items():
            assert inner.get("description") or key in RESERVED, f"{path}.{key}"
            walk(inner.get("items", inner), f"{path}.{key}")

    walk(validator.schema, "$")


def test_check_names_the_tables_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[log]\nlevel = "debug"\n[recorder]\nout = "/tmp/r"\n')
    done = CliRunner().invoke(cli, ["config", "check", str(file), "--json"])
    assert json.loads(done.output) == {"file": str(file), "tables": ["log", "recorder"]}


def test_check_reports_all_mistakes_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[log]\nlevel = "loud"\n[recorder]\nuot = "/tmp/r"\n')
    done = CliRunner().invoke(cli, ["config", "check", str(file)])
    assert done.exit_code == 1
    text = str(done.exception)
    assert "log.level" in text
    assert "out" in text


def test_modules_of_the_command_are_all_that_declare_settings() -> None:
    declared = {
        ".".join(path.relative_to(ROOT / "python/tensorpool").with_suffix("").parts)
        for path in (ROOT / "python/tensorpool").glob("*/config.py")
    }
    assert declared - {"cli.config"} <= set(config_command.SETTINGS_MODULES)
