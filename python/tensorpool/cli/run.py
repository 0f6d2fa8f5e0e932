"""`tensorpool run`: runs the stages of a file."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import click

from ..errors import RoleFailed
from ..stages import Stage, run_stages

_EPILOG = """
\b
Examples:
  tensorpool run stage.py
  AERON_DIR=/dev/shm/aeron-lab tensorpool run difference.py
"""


@click.command(epilog=_EPILOG)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def run(file: Path) -> None:
    """Run the stages that FILE defines, until SIGTERM or Ctrl-C.

    FILE is a Python program with one or more variables of `tp.stage(...)`. Each is a service,
    `stage:<name>`, with the property `paused` and the command `status`.
    """
    # As a program does: modules beside the file can be imported.
    sys.path.insert(0, str(file.resolve().parent))
    # Not "__main__": a file that runs its stage itself then leaves that to this command.
    variables = runpy.run_path(str(file), run_name="__tensorpool__")
    stages = [value for value in variables.values() if isinstance(value, Stage)]
    if not stages:
        raise RoleFailed(f"{file} defines no stage: assign one, as in difference = tp.stage(…)")
    run_stages(list(dict.fromkeys(stages)))
