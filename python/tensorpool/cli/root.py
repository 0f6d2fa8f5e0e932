"""The root of all commands: the nouns, and how errors of the package are told."""

from __future__ import annotations

import errno
import os
import sys
from typing import Final

import click

from .. import __version__
from ..errors import TensorPoolError
from .bridge import bridge
from .demo import demo
from .discover import discover
from .doctor import doctor
from .driver import driver
from .ledger import ledger
from .metrics import metrics
from .params import CommandGroup
from .pipeline import pipeline
from .record import record
from .recording import recording
from .registry import registry
from .replay import replay
from .sbe import sbe
from .service import service
from .shm import shm
from .stream import stream
from .supervisor import supervisor
from .top import top

_EPILOG = """
\b
Examples:
  tensorpool demo                    tensors between processes, with a ledger
  tensorpool doctor                  is this machine fit, else what to do
  tensorpool driver                  run the owner of all memory
  tensorpool driver leases           who holds leases on it, for how long
  tensorpool discover                which streams there are, by name and tags
  tensorpool stream watch            every stream, live: rate, shape, drops
  tensorpool top                     the whole system on one page, live
  tensorpool metrics                 its figures for Prometheus, OpenTelemetry
  tensorpool record --all --out DIR  streams to disk, no frame unaccounted for
  tensorpool replay DIR              a recording into the pools again
  tensorpool pipeline run FILE       recordings to tables, with Spark
  tensorpool bridge                  carry streams to another host
  tensorpool supervisor              see all of it, steer consumers by rules
  tensorpool ledger                  what became of every frame, on every path
  tensorpool service ls              which services run, and how to steer them
  tensorpool shm inspect PATH        what lies in shared memory, is it sound
  tensorpool sbe decode message.bin  any message of the protocols as JSON
"""


_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@click.group(cls=CommandGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tensorpool")
def cli() -> None:
    """Move tensors between processes through shared memory, and watch them."""


cli.add_command(bridge)
cli.add_command(demo)
cli.add_command(discover)
cli.add_command(doctor)
cli.add_command(driver)
cli.add_command(ledger)
cli.add_command(pipeline)
cli.add_command(metrics)
cli.add_command(record)
cli.add_command(recording)
cli.add_command(replay)
cli.add_command(registry)
cli.add_command(sbe)
cli.add_command(service)
cli.add_command(shm)
cli.add_command(stream)
cli.add_command(supervisor)
cli.add_command(top)


def run() -> None:
    """Runs the command; errors of the package are one sentence on stderr."""
    try:
        cli()
    except TensorPoolError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        # A full disk behind a redirection has no name, and is no fault of the program either.
        if error.filename is None and error.errno in _NO_ROOM:
            _discard_stdout()
            click.echo(f"error: nothing more can be written: {error.strerror}", err=True)
            sys.exit(1)
        # A place that cannot be used is no fault of the program. Without a place it may be one.
        if error.filename is None:
            raise
        click.echo(f"error: {error.filename}: {error.strerror}; tensorpool doctor says what to do", err=True)
        sys.exit(1)


def _discard_stdout() -> None:
    """What is left in its buffer would be tried once more at the very end, and end in other words."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
