"""The root command: its nouns, and the messages for errors of the package."""

from __future__ import annotations

import errno
import os
import sys
from typing import Final

import click

from .._native import AERON_VERSION, __version__
from ..errors import TensorPoolError
from ..text import safe_lines
from .params import LazyCommand, LazyGroup

# The help of each command, so that neither `tensorpool --help` nor the Tab key imports all of them.
SECTIONS: Final = {
    "First steps": [
        LazyCommand(
            "demo", "Run a synthetic camera, two consumers and a recorder on a driver that owns the memory."
        ),
        LazyCommand(
            "doctor", "Check shared memory, limits, permissions, huge pages, drivers, clock and software."
        ),
    ],
    "Look at a running system": [
        LazyCommand("discover", "Find the streams that match all options; without options, all streams."),
        LazyCommand("stream", "Inspect the streams of a running system."),
        LazyCommand(
            "top",
            "See streams, consumers, leases, bridges and recorders, live: rates, drops by reason, latency.",
        ),
        LazyCommand(
            "console",
            "Watch and steer a running system in a browser: graph, frames, plots, ledger, recordings.",
        ),
        LazyCommand(
            "ledger", "Show that published = delivered + dropped by reason, for every stream and path."
        ),
        LazyCommand(
            "metrics", "Serve metrics of the whole system to Prometheus, or send them to OpenTelemetry."
        ),
        LazyCommand("service", "Read, set, call and watch running services."),
    ],
    "Record and analyse": [
        LazyCommand(
            "record", "Record streams into a directory until Ctrl-C, SIGTERM, --seconds or --frames."
        ),
        LazyCommand("recording", "Inspect, verify, repair, copy, export and archive recordings."),
        LazyCommand("replay", "Publish the recording DIR again, through producers."),
        LazyCommand(
            "pipeline",
            "Turn recordings into tables: bronze as recorded, silver checked and aligned, gold measured.",
        ),
    ],
    "Run the roles of a system": [
        LazyCommand(
            "driver",
            "Run the SHM driver, which owns the regions of all streams; show its state and control it.",
        ),
        LazyCommand("bridge", "Publish streams of one host on another, over Aeron UDP."),
        LazyCommand("config", "Print the JSON Schema of configuration files, and check a file."),
        LazyCommand("limit", "Publish streams again, at most this many frames a second."),
        LazyCommand("media-driver", "Run Aeron's media driver in a process of its own."),
        LazyCommand("run", "Run the stages that FILE defines, until SIGTERM or Ctrl-C."),
        LazyCommand("registry", "Index the streams of many drivers, and answer discovery requests."),
        LazyCommand("supervisor", "Monitor a running system, and control its consumers by rules or by hand."),
    ],
    "Look at bytes": [
        LazyCommand("shm", "Inspect regions in shared memory, of any owner."),
        LazyCommand("sbe", "Decode messages of the protocols to JSON, and encode them from JSON."),
    ],
}

_EPILOG = """
\b
Examples:
  tensorpool demo                    tensors between processes, with a ledger
  tensorpool stream watch            every stream, live: rate, shape, drops
  tensorpool record --all --out DIR  streams to disk, no frame unaccounted for
  tensorpool pipeline run FILE       recordings to tables, with Spark
  tensorpool driver                  run the owner of the shared memory

Every command has --help with examples, and --json where it prints data.
"""

# Versions of the documents that docs/protocol describes.
_PROTOCOL: Final = "wire 1.2, driver 1.0, discovery 1.0, service 1.0, bridge 1.0"
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    package=__package__,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(
    __version__,
    message=f"tensorpool {__version__}\nAeron {AERON_VERSION}\nprotocol {_PROTOCOL}",
)
def cli() -> None:
    """Move tensors between processes through shared memory, and watch them."""


def run() -> None:
    """Runs the command; prints errors of the package as one sentence on stderr."""
    try:
        cli()
    except TensorPoolError as error:
        click.echo(safe_lines(f"error: {error}"), err=True)
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
        message = f"error: {error.filename}: {error.strerror}; tensorpool doctor shows remedies"
        click.echo(safe_lines(message), err=True)
        sys.exit(1)


def _discard_stdout() -> None:
    """Keeps the interpreter from writing the buffered rest at exit, which would fail with another message."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
