"""The command `tensorpool`: nouns, then verbs. Data on stdout, words on stderr.

Exit status: 0 done, 1 failed, 2 misused.
"""

from __future__ import annotations

import sys

import click

from .. import __version__
from ..errors import TensorPoolError
from .demo import demo
from .sbe import sbe
from .service import service

_EPILOG = """
\b
Examples:
  tensorpool demo                     tensors between processes, live, with a ledger
  tensorpool service ls               which services run, and how to steer them
  tensorpool sbe decode message.bin   any message of the protocols as JSON
"""


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tensorpool")
def cli() -> None:
    """Move tensors between processes through shared memory, and watch them."""


cli.add_command(demo)
cli.add_command(sbe)
cli.add_command(service)


def main() -> None:
    """Runs the command; errors of the package are one sentence on stderr."""
    try:
        cli()
    except TensorPoolError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
