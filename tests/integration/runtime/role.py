"""A role for a process of its own: prints what happens to it, and fails on command."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tensorpool.cli.options import role_options
from tensorpool.errors import RoleFailed, TensorPoolError
from tensorpool.runtime import run_role
from tensorpool.runtime.config import Config, DurationNs, parse_duration, setting, settings


@settings("sample")
class SampleSettings:
    """A role for tests."""

    period_ns: DurationNs = setting("How often.", default=parse_duration("1s"), live=True)
    namespace: str = setting("Its name space.", default="default")
    order: Path | None = setting(
        "File with a command: `error`, `fail` or `fail at start`.", default=None, flag="--order"
    )


class Sample:
    name = "sample"

    def __init__(self, settings: SampleSettings) -> None:
        self._settings = settings

    def _is_ordered(self, command: str) -> bool:
        order = self._settings.order
        return order is not None and order.exists() and order.read_text() == command

    def on_start(self) -> None:
        if self._is_ordered("fail at start"):
            raise RoleFailed("ordered to fail at start")

    def do_work(self) -> int:
        if self._is_ordered("fail"):
            raise RoleFailed("ordered to fail")
        if self._is_ordered("error"):
            raise OSError("ordered to raise")
        return 0

    def on_reload(self, config: Config) -> None:
        print(f"period {config[SampleSettings].period_ns}", flush=True)

    def on_close(self) -> None:
        print("closed", flush=True)


@click.command()
@role_options(SampleSettings)
def main(config: Config) -> None:
    run_role("sample", config, lambda: Sample(config[SampleSettings]))


if __name__ == "__main__":
    try:
        main()
    except TensorPoolError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
