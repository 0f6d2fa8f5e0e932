"""The options of every command that looks at a running system, and the connection they describe."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from .. import context
from ..client import ReportOptions
from ..context.config import AeronSettings
from ..context.startup import load_config
from ..errors import MediaDriverError, MediaDriverUnavailable
from ..service import ServiceClient
from ..shm.inspect import user_of
from ..transport import default_aeron_dir
from ..transport.media_driver import read_mark_file

_SECONDS = click.FloatRange(0, 86_400)
_CONNECT_TIMEOUT_S = 3.0
# As long as Aeron's own clients believe in a driver that is silent.
_SILENT_S = 10.0
_Command = Callable[..., None]

token_option = click.option(
    "--token",
    envvar="TENSORPOOL_TOKEN",
    help="For commands that need it; better by environment. [TENSORPOOL_TOKEN]",
)


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach what runs, and how to print what it says."""

    config: str | None
    aeron_dir: str | None
    timeout: float
    as_json: bool

    @contextmanager
    def context(self) -> Iterator[context.Context]:
        """A connection that only looks: no media driver is embedded, no SHM driver, and no lease is taken.

        Starting another one would only hide that the one that was meant is missing.
        """
        config = load_config(self.config)
        aeron_dir = str(self.aeron_dir or config[AeronSettings].dir or default_aeron_dir())
        if _is_nobody_there(Path(aeron_dir)):
            raise _unavailable(aeron_dir)
        try:
            ctx = context.open(
                mode="standalone",
                aeron_dir=aeron_dir,
                config=config,
                media_driver="external",
                connect_timeout=_CONNECT_TIMEOUT_S,
            )
        except MediaDriverUnavailable as error:
            raise _unavailable(error.aeron_dir) from None
        # Who only looks is not looked at.
        ctx._reports = ReportOptions(latency=False, counters=False, accounts=False)
        with ctx:
            yield ctx

    @contextmanager
    def client(self, target: str, token: str | None = None) -> Iterator[ServiceClient]:
        """A client of the service NAME or NAME:INSTANCE."""
        name, _, instance = target.partition(":")
        with (
            self.context() as ctx,
            ctx.service(name, instance=instance or None, timeout=self.timeout, token=token) as client,
        ):
            yield client


def _is_nobody_there(aeron_dir: Path) -> bool:
    """Whether waiting is of no use: no driver was ever started there, or what it left is old.

    One that is only just starting, or was silent for a moment, is waited for.
    """
    try:
        mark = read_mark_file(aeron_dir)
    except MediaDriverError:
        return not os.access(aeron_dir, os.R_OK | os.X_OK)
    if mark is None:
        return not aeron_dir.is_dir()
    ended = mark.heartbeat_ms < 0
    return ended or (mark.heartbeat_ms > 0 and mark.age_s(time.time_ns()) > _SILENT_S)


def _is_stopped(aeron_dir: Path) -> bool:
    """Whether its process is there and only gives no sign of life."""
    with suppress(MediaDriverError):
        mark = read_mark_file(aeron_dir)
        return mark is not None and mark.is_in_use()
    return False


def _unavailable(aeron_dir: str) -> MediaDriverUnavailable:
    """Why, in the words of somebody at a prompt, who cannot be told to change a program."""
    where = Path(aeron_dir)
    start = "start tensorpool driver or a program that embeds one, or name another directory with --aeron-dir"
    if where.is_dir() and not os.access(where, os.R_OK | os.X_OK):
        owner = user_of(where.stat().st_uid)
        why = f"the media driver in {where} is {owner}'s, and you may not enter there (tensorpool doctor)"
    elif not (where / "cnc.dat").exists():
        why = f"no media driver is running in {where}; {start}"
    elif _is_nobody_there(where) and not _is_stopped(where):
        why = f"the media driver in {where} runs no more; {start}"
    else:
        why = f"the media driver in {where} does not answer; tensorpool doctor says more"
    return MediaDriverUnavailable(why, aeron_dir=aeron_dir)


def connection_options(command: _Command) -> _Command:
    """Adds --config, --aeron-dir, --timeout and --json; the command gets them as `to`."""

    @functools.wraps(command)
    def wrapped(
        config: str | None, aeron_dir: str | None, timeout: float, as_json: bool, **rest: Any
    ) -> None:
        command(to=Connection(config, aeron_dir, timeout, as_json), **rest)

    decorated: _Command = wrapped
    for option in (
        click.option("--config", type=click.Path(dir_okay=False), help="A TOML file. [TENSORPOOL_CONFIG]"),
        click.option("--aeron-dir", help="Where the media driver is. [AERON_DIR, else Aeron's default]"),
        click.option(
            "--timeout", default=5.0, show_default=True, type=_SECONDS, help="Seconds to wait for an answer."
        ),
        click.option("--json", "as_json", is_flag=True, help="JSON on stdout."),
    ):
        decorated = option(decorated)
    return decorated
