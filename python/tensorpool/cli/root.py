"""The root command: its nouns, and the messages for errors of the package."""

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
from .media_driver import media_driver
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
  tensorpool doctor                  checks of this machine, with remedies
  tensorpool driver                  run the owner of the shared memory
  tensorpool driver leases           the leases it granted, and their age
  tensorpool discover                find streams by name and tags
  tensorpool stream watch            every stream, live: rate, shape, drops
  tensorpool top                     the whole system on one page, live
  tensorpool metrics                 metrics for Prometheus, OpenTelemetry
  tensorpool record --all --out DIR  streams to disk, no frame unaccounted for
  tensorpool replay DIR              publish a recording again
  tensorpool pipeline run FILE       recordings to tables, with Spark
  tensorpool bridge                  carry streams to another host
  tensorpool media-driver            run Aeron's media driver by itself
  tensorpool supervisor              monitor it, control consumers by rules
  tensorpool ledger                  every frame: delivered, or why not
  tensorpool service ls              the services that run, and their commands
  tensorpool shm inspect PATH        check the regions in shared memory
  tensorpool sbe decode message.bin  any message of the protocols as JSON
"""

_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
cli.add_command(media_driver)
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
    """Runs the command; prints errors of the package as one sentence on stderr."""
    try:
        cli()
    except TensorPoolError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        # A full disk behind a redirected stdout has no file name, and is not a bug.
        if error.filename is None and error.errno in _NO_SPACE:
            _discard_stdout()
            click.echo(f"error: stdout cannot be written: {error.strerror}", err=True)
            sys.exit(1)
        # An error about a file is not a bug; an error without one may be.
        if error.filename is None:
            raise
        click.echo(f"error: {error.filename}: {error.strerror}; tensorpool doctor shows remedies", err=True)
        sys.exit(1)


def _discard_stdout() -> None:
    """Keeps the interpreter from writing the buffered rest at exit, which would fail with another message."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
