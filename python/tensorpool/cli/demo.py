"""`tensorpool demo`: the system at work on this machine."""

from __future__ import annotations

import sys

import click

_EPILOG = """
\b
Examples:
  tensorpool demo
  tensorpool demo --seconds 30 --fps 500
  tensorpool demo --json > ledger.json
"""


@click.command(epilog=_EPILOG)
@click.option("--seconds", default=8.0, show_default=True, type=click.FloatRange(1, 86_400), help="How long.")
@click.option("--fps", default=200, show_default=True, type=click.IntRange(1, 5_000), help="Frames a second.")
@click.option("--json", "as_json", is_flag=True, help="Only the ledger, as JSON on stdout.")
def demo(seconds: float, fps: int, as_json: bool) -> None:
    """A synthetic camera and two consumers, each a process, on an embedded media driver.

    Shows rate, bandwidth, latency and drops by reason while it runs, and ends with a ledger of every
    frame. Exit status 0 only if it adds up.
    """
    from ..demo import run

    sys.exit(0 if run(seconds=seconds, fps=fps, as_json=as_json) else 1)
