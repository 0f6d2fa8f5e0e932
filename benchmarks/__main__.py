"""The command `python -m benchmarks`: measures, prints tables, writes JSON. `make bench` runs it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from . import history, report, sbe_codecs
from .dataplane import OURS, SIZES, DataPlaneRuns, Settings, measure
from .endpoint_process import exit_on_signal
from .library import LIBRARIES, load
from .machine import describe
from .sections import SECTIONS

_PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "benchmarks.md"
_NAMES = ("two-processes", "one-process", *SECTIONS, "codecs")


@click.command()
@click.option(
    "--peers", is_flag=True, help="Also measure TensorPool without a driver, iceoryx2, zenoh and pyzmq."
)
@click.option(
    "--peer",
    multiple=True,
    type=click.Choice([*LIBRARIES][1:]),
    help="Also measure this library. Repeatable.",
)
@click.option(
    "--only", multiple=True, type=click.Choice(_NAMES), help="Measure only this section. Repeatable."
)
@click.option(
    "--size", multiple=True, type=click.Choice(list(SIZES)), help="Measure only this frame size. Repeatable."
)
@click.option(
    "--runs",
    default=5,
    show_default=True,
    type=click.IntRange(1),
    help="Runs of each measurement; the report shows medians.",
)
@click.option(
    "--quick", is_flag=True, help="One short run: checks that the benchmarks work; the figures mean nothing."
)
@click.option(
    "--patience",
    default=0.0,
    metavar="SECONDS",
    help="Wait this long in total for an idle machine, and repeat disturbed measurements.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    help="Write the report as JSON to this file; - is stdout.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown instead of tables.")
@click.option("--update-page", is_flag=True, help="Write the Markdown into docs/explanation/benchmarks.md.")
@click.option(
    "--save",
    is_flag=True,
    help="Keep the results of this version in benchmarks/results; with --only, they replace the same results "
    "of an earlier run.",
)
def main(
    peers: bool,
    peer: tuple[str, ...],
    only: tuple[str, ...],
    size: tuple[str, ...],
    runs: int,
    quick: bool,
    patience: float,
    json_path: Path | None,
    markdown: bool,
    update_page: bool,
    save: bool,
) -> None:
    """Measure latency and rate of the data plane and their cost relative to a bare copy; the cost of a driver
    by its streams and leases, and the gap that its restart causes; per-consumer streams; recordings; codecs.

    Run it on an otherwise idle machine. Only the ratios within one run can be compared between machines.
    """
    if save and quick:
        raise click.UsageError("--save keeps figures, and those of --quick mean nothing: leave one out")
    # SIGTERM unwinds like Ctrl-C, so that child processes end and their files are removed.
    signal.signal(signal.SIGTERM, exit_on_signal)
    names = [OURS, *([*LIBRARIES][1:] if peers else [name for name in LIBRARIES if name in peer])]
    libraries = {name: _load(name) for name in names}
    sections = only or _NAMES
    settings = Settings(
        libraries=names,
        sizes=[name for name in SIZES if not size or name in size],
        runs=1 if quick else runs,
        patience_s=patience,
        is_quick=quick,
        **({"warmup_s": 0.1, "latency_s": 0.4, "rate_s": 0.3} if quick else {}),
    )
    measured = DataPlaneRuns()
    if {"two-processes", "one-process"} & set(sections):
        measured = measure(settings, pairs="two-processes" in sections, one_process="one-process" in sections)
    result = report.Report(
        machine=describe(),
        versions={name: library.version() for name, library in libraries.items()},
        terms={name: library.terms() for name, library in libraries.items()},
        settings=settings,
        measured=measured,
        codecs=sbe_codecs.run(json_out=True) if "codecs" in sections else None,
        sections=[
            measure_section(settings) for name, measure_section in SECTIONS.items() if name in sections
        ],
    )
    _write(result, json_path, markdown=markdown, update_page=update_page)
    if save:
        click.echo(f"wrote {history.save(result)}; python -m tools.reference writes its page", err=True)
    if result.failures:
        raise SystemExit(1)


def _load(name: str) -> Any:
    try:
        return load(name)
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"{error.name} is missing; `make bench` installs it, or: pip install --group bench"
        ) from None


def _write(result: report.Report, json_path: Path | None, *, markdown: bool, update_page: bool) -> None:
    text = json.dumps(result.to_json(), indent=2)
    if json_path is not None and str(json_path) != "-":
        json_path.write_text(text + "\n", "utf-8")
    if str(json_path) == "-":
        # JSON goes to stdout, the tables to stderr.
        click.echo(text)
        report.show(result, Console(stderr=True))
    elif markdown:
        click.echo(report.markdown(result))
    else:
        console = Console()
        report.show(result, console if sys.stdout.isatty() else Console(width=140))
    if update_page:
        report.update_page(result, _PAGE)


if __name__ == "__main__":
    main()
