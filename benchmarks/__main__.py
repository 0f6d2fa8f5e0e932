"""`python -m benchmarks`: measures, prints tables, writes JSON. `make bench ARGS="--peers"` calls it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from . import report, sbe_codecs
from .dataplane import OURS, SIZES, Measured, Settings, measure
from .library import LIBRARIES, load
from .machine import describe
from .role import leave
from .sections import SECTIONS

_README = Path(__file__).parent.parent / "README.md"
_NAMES = ("two-processes", "one-process", *SECTIONS, "codecs")


@click.command()
@click.option("--peers", is_flag=True, help="The same work without a driver, on iceoryx2, zenoh and pyzmq.")
@click.option("--peer", multiple=True, type=click.Choice([*LIBRARIES][1:]), help="One of them. Repeatable.")
@click.option("--only", multiple=True, type=click.Choice(_NAMES), help="Only this section. Repeatable.")
@click.option("--size", multiple=True, type=click.Choice(list(SIZES)), help="Only this size. Repeatable.")
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1), help="Medians count.")
@click.option("--quick", is_flag=True, help="One short run: shows that it works, not how fast it is.")
@click.option(
    "--patience",
    default=0.0,
    metavar="SECONDS",
    help="Wait this long in all for moments when nothing else runs, and repeat what was disturbed.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write it all there; - is stdout.")
@click.option("--markdown", is_flag=True, help="Print Markdown instead of tables.")
@click.option("--update-readme", is_flag=True, help="Put the Markdown into the README, between its markers.")
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
    update_readme: bool,
) -> None:
    """Latency and rate of the data plane, the cost beside a bare copy; what a driver costs as streams and
    leases grow, and how long its restart is felt; what consumers' wishes cost; recordings; and the codecs.

    Run it on a machine that does nothing else. Only the ratios of one run mean anything elsewhere.
    """
    # Asked to end, it takes its children and their files along, as it does at Ctrl-C.
    signal.signal(signal.SIGTERM, leave)
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
    measured = Measured()
    if {"two-processes", "one-process"} & set(sections):
        measured = measure(settings, pairs="two-processes" in sections, one_process="one-process" in sections)
    made = report.Report(
        machine=describe(),
        versions={name: library.version() for name, library in libraries.items()},
        terms={name: library.terms() for name, library in libraries.items()},
        settings=settings,
        measured=measured,
        codecs=sbe_codecs.run(json_out=True) if "codecs" in sections else None,
        parts=[part(settings) for name, part in SECTIONS.items() if name in sections],
    )
    _write(made, json_path, markdown=markdown, update_readme=update_readme)
    if made.failures:
        raise SystemExit(1)


def _load(name: str) -> Any:
    try:
        return load(name)
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"{error.name} is missing; `make bench` installs it, or: pip install --group bench"
        ) from None


def _write(made: report.Report, json_path: Path | None, *, markdown: bool, update_readme: bool) -> None:
    text = json.dumps(made.to_json(), indent=2)
    if json_path is not None and str(json_path) != "-":
        json_path.write_text(text + "\n", "utf-8")
    if str(json_path) == "-":
        # Data on stdout, words on stderr.
        click.echo(text)
        report.show(made, Console(stderr=True))
    elif markdown:
        click.echo(report.markdown(made))
    else:
        console = Console()
        report.show(made, console if sys.stdout.isatty() else Console(width=140))
    if update_readme:
        report.update_readme(made, _README)


if __name__ == "__main__":
    main()
