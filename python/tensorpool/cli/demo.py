"""`tensorpool demo`: the system at work on this machine."""

from __future__ import annotations

import sys

import click

_EPILOG = """
\b
Examples:
  tensorpool demo
  tensorpool demo --seconds 30 --fps 500
  tensorpool demo --no-kill
  tensorpool demo --json > ledger.json
"""


@click.command(epilog=_EPILOG)
@click.option("--seconds", default=8.0, show_default=True, type=click.FloatRange(1, 86_400), help="How long.")
@click.option("--fps", default=200, show_default=True, type=click.IntRange(1, 5_000), help="Frames a second.")
@click.option("--kill/--no-kill", default=True, show_default=True, help="Kill the camera at half time.")
@click.option("--json", "as_json", is_flag=True, help="Only the ledger, as JSON on stdout.")
def demo(seconds: float, fps: int, kill: bool, as_json: bool) -> None:
    """A synthetic camera and two consumers, attached by leases to a driver that owns the memory.

    Each is a process. Shows rate, bandwidth, latency and drops by reason while it runs. At half time the
    camera is killed and started again: the driver notices, and the others go on by themselves. Ends with a
    ledger of every frame. Exit status 0 only if it adds up. Ctrl-C ends it early, with the ledger.
    """
    from ..demo import run

    sys.exit(0 if run(seconds=seconds, fps=fps, kill=kill, as_json=as_json) else 1)
