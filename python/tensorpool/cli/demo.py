"""`tensorpool demo`: the system at work on this machine."""

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
  tensorpool demo --hosts 2
  tensorpool demo --report demo.html
  tensorpool demo --json > ledger.json
"""


@click.command(epilog=_EPILOG)
@click.option("--seconds", default=8.0, show_default=True, type=click.FloatRange(1, 86_400), help="How long.")
@click.option("--fps", default=200, show_default=True, type=click.IntRange(1, 5_000), help="Frames a second.")
@click.option("--kill/--no-kill", default=True, show_default=True, help="Kill camera and recorder.")
@click.option(
    "--hosts", default=1, show_default=True, type=click.IntRange(1, 2), help="2: with a bridge between them."
)
@click.option("--spark/--no-spark", default=True, show_default=True, help="End with a Spark query.")
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help="Keep the pipeline's report page there."
)
@click.option("--json", "as_json", is_flag=True, help="Only the ledger, as JSON on stdout.")
def demo(
    seconds: float, fps: int, kill: bool, hosts: int, spark: bool, report: Path | None, as_json: bool
) -> None:
    """A synthetic camera, two consumers and a recorder, attached by leases to a driver that owns the memory.

    Each is a process. Shows rate, bandwidth, latency and drops by reason while it runs. At half time the
    camera is killed and started again: the driver notices, and the others go on by themselves. Then the
    recorder is, and goes on where it was. Ends with a ledger of every frame, a look at every one that was
    recorded, a replay with equal checksums, and, where Spark is installed, a streaming query over them and a
    pipeline to tables whose numbers equal the ledger. Exit status 0 only if all adds up. Ctrl-C ends it
    early, with the ledger.

    With --hosts 2 the camera is on one host, a viewer and a recorder are on another, and a bridge over UDP is
    between them: two network namespaces where that is permitted, else two media drivers on loopback. The
    ledger joins all of them.
    """
    if hosts == 2:
        from ..demo import two_hosts

        sys.exit(0 if two_hosts.run(seconds=seconds, fps=fps, as_json=as_json) else 1)
    from ..demo import run

    sys.exit(
        0 if run(seconds=seconds, fps=fps, kill=kill, spark=spark, as_json=as_json, report=report) else 1
    )
