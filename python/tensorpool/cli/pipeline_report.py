"""`tensorpool pipeline report`: a pipeline's tables as one page."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import click
from rich.text import Text

from .screen import BAD, GOOD, console, format_bytes

_EPILOG = """
\b
Examples:
  tensorpool pipeline report TABLES                       writes TABLES.html
  tensorpool pipeline report TABLES --out report.html --open
  tensorpool pipeline report TABLES --json | jq .totals
"""


@click.command(epilog=_EPILOG)
@click.argument("root", metavar="ROOT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The page.  [ROOT.html]")
@click.option("--open", "show", is_flag=True, help="Show it in the browser.")
@click.option(
    "--samples",
    default=4,
    show_default=True,
    type=click.IntRange(0, 64),
    help="Frames of each stream to show.",
)
@click.option("--json", "as_json", is_flag=True, help="The same figures on stdout; no page unless --out.")
def report(root: Path, out: Path | None, show: bool, samples: int, as_json: bool) -> None:
    """Make one HTML page of the tables in ROOT: rates, gaps, latency, alignment, frames.

    The page needs no network and no other file. Exit status 1 if the tables do not add up.
    """
    from ..pipeline import report as reports

    if as_json and show and out is None:
        raise click.UsageError("--open needs a page: say where with --out")
    target = out if out is not None or as_json else root.absolute().with_name(f"{root.absolute().name}.html")
    if target is None:
        # Pictures are for the page only.
        found = reports.collect(root, samples=0)
    else:
        found = reports.write(root, target, samples=samples)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    screen = console(err=True)
    for fault in found.faults:
        screen.print(Text(f"✗ {fault}", style=BAD), soft_wrap=True)
    if target is not None:
        words = f"{found.total('frames'):,} frames, {format_bytes(found.total('bytes'))}: {target}"
        screen.print(
            Text(f"✓ {words}" if not found.faults else words, style="" if found.faults else GOOD),
            soft_wrap=True,
        )
    if show and target is not None and not webbrowser.open(target.absolute().as_uri()):
        screen.print(Text("hint: no browser was found; open the file yourself"), soft_wrap=True)
    if found.faults:
        raise SystemExit(1)
