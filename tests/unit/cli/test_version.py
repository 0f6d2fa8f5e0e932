"""The version: one place, and what `tensorpool --version` prints."""

from __future__ import annotations

import re

from click.testing import CliRunner

import tensorpool as tp
from tensorpool.cli import cli
from tools.release import package_version


def test_version_is_that_of_the_manifest() -> None:
    assert tp.__version__ == package_version()


def test_version_command_names_aeron_and_the_protocol() -> None:
    lines = CliRunner().invoke(cli, ["--version"]).output.splitlines()
    assert lines[0] == f"tensorpool {tp.__version__}"
    assert re.fullmatch(r"Aeron \d+\.\d+\.\d+", lines[1])
    assert lines[2].startswith("protocol wire 1.2, ")
