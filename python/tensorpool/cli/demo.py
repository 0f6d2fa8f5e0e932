"""`tensorpool demo`: a complete system on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

_EPILOG = """
\b
Examples:
  tensorpool demo
  tensorpool demo --seconds 30 --fps 500
  tensorpool demo --no-kill
  tensorpool demo --console
  tensorpool demo --hosts 2
  tensorpool demo --report demo.html
  tensorpool demo --store s3
  tensorpool demo --json > ledger.json
"""


@click.command(epilog=_EPILOG)
@click.option("--seconds", type=click.FloatRange(1, 86_400), help="Duration.  [8; with --console 60]")
@click.option("--fps", default=200, show_default=True, type=click.IntRange(1, 5_000), help="Frames a second.")
@click.option(
    "--kill/--no-kill", default=True, show_default=True, help="Kill the camera and the recorder once."
)
@click.option(
    "--hosts",
    default=1,
    show_default=True,
    type=click.IntRange(1, 2),
    help="2: two hosts with a bridge between them.",
)
@click.option(
    "--spark/--no-spark", default=True, show_default=True, help="End with a Spark query and a pipeline."
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the report page of the pipeline in this file.",
)
@click.option(
    "--console",
    "has_console",
    is_flag=True,
    help="Show the demo in a browser: prints an address, and opens it on a desktop. Needs the extra console.",
)
@click.option(
    "--store",
    default="disk",
    show_default=True,
    help="Where Spark's tables and an archive of the recording go: disk; s3, an S3 server of the demo's own; "
    "or a URI, as in s3://bucket/prefix.",
)
@click.option(
    "--timeout",
    "timeout_s",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0, 86_400),
    help="Longest wait for one step, in seconds; Spark gets ten times that.",
)
@click.option("--json", "json_output", is_flag=True, help="Print only the ledger, as JSON on stdout.")
def demo(
    seconds: float | None, fps: int, kill: bool, hosts: int, spark: bool, report: Path | None,
    has_console: bool, store: str, timeout_s: float, json_output: bool,
) -> None:  # fmt: skip
    """Run a synthetic camera, two consumers and a recorder on a driver that owns the memory.

    Each is a process. Shows rate, bandwidth, latency and drops by reason while it runs. Halfway through, it
    kills the camera and starts it again: the driver detects it, and the consumers continue by themselves.
    Then it kills the recorder, which continues its recording. At the end it prints a ledger of every frame,
    checks every recorded frame, compares checksums of a replay, and, if Spark is installed, runs a streaming
    query and a pipeline to tables whose numbers have to equal the ledger. Exit status 0 only if everything
    adds up. Ctrl-C ends it early, with the ledger; so does a step that takes longer than --timeout.

    With --hosts 2 the camera is on one host, a viewer and a recorder are on another, and a bridge over UDP
    connects them: two network namespaces where that is permitted, else two media drivers on loopback. The
    ledger covers both hosts.

    With --console the demo runs for a minute, and `tensorpool console` shows it: the graph, frames, the two
    kills, the ledger and the recording.
    """
    if has_console:
        if hosts == 2:
            raise click.UsageError("--console shows one host; leave --hosts 2 out")
        from .console import check_extra

        check_extra()
    if seconds is None:
        seconds = 60.0 if has_console else 8.0
    if hosts == 2:
        from ..demo import two_hosts

        is_sound = two_hosts.run(seconds=seconds, fps=fps, json_output=json_output)
    else:
        from ..demo import run
        from ..demo.checks import store_fault

        if store != "disk" and not spark:
            raise click.UsageError("--store is for the tables of Spark: leave out --no-spark")
        if (fault := store_fault(store)) is not None:
            raise click.UsageError(fault)
        is_sound = run(
            seconds=seconds,
            fps=fps,
            kill=kill,
            spark=spark,
            json_output=json_output,
            report=report,
            has_console=has_console,
            timeout_s=timeout_s,
            store=store,
        )
    sys.exit(0 if is_sound else 1)
