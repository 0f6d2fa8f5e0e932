"""`tensorpool config`: the JSON Schema of configuration files, and a check of a file."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from ..runtime.config import ROLES, check_file
from ..runtime.config.schema import json_schema
from .output import console, key_values
from .params import CommandGroup

# The modules that declare settings. A role is known as soon as its module is imported.
SETTINGS_MODULES: Final = (
    "runtime.role",
    "context.config",
    "bridge.config",
    "discovery.config",
    "driver.config",
    "metrics.config",
    "pipeline.definition",
    "recorder.config",
    "registry.config",
    "service.config",
    "supervisor.config",
)

_EPILOG = """
\b
Examples:
  tensorpool config schema > tensorpool.schema.json
  tensorpool config check /etc/tensorpool.toml
"""

_SCHEMA = """
\b
Examples:
  tensorpool config schema > tensorpool.schema.json
  sed -i '1i #:schema ./tensorpool.schema.json' tensorpool.toml
"""

_CHECK = """
\b
Examples:
  tensorpool config check /etc/tensorpool.toml
  tensorpool config check lab.toml --json
"""


@click.group(cls=CommandGroup, epilog=_EPILOG)
def config() -> None:
    """Print the JSON Schema of configuration files, and check a file."""


@config.command(epilog=_SCHEMA)
def schema() -> None:
    """Print a JSON Schema of the configuration, for editors.

    Editors with a TOML extension (Even Better TOML, taplo, Tombi) complete and check a file whose first line
    is `#:schema PATH`.
    """
    _import_roles()
    click.echo(json.dumps(json_schema(_own_roles()), indent=2, ensure_ascii=False))


@config.command(epilog=_CHECK)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "json_output", is_flag=True, help="Print the tables of the file as JSON.")
def check(file: Path, json_output: bool) -> None:
    """Check every table of a configuration FILE, of all roles, and say everything that is wrong with it.

    The environment and flags are left out. `--check` of a role reads them too.
    """
    _import_roles()
    tables = check_file(file).tables
    if json_output:
        click.echo(json.dumps({"file": str(file), "tables": tables}))
    else:
        console().print(key_values([(str(file), f"valid: {', '.join(tables) or 'no tables'}")]))


def _import_roles() -> None:
    for module in SETTINGS_MODULES:
        import_module(f"tensorpool.{module}")


def _own_roles() -> dict[str, type]:
    """The roles of this package. A program that uses it may have registered others."""
    return {role: cls for role, cls in ROLES.items() if cls.__module__.startswith("tensorpool.")}
