"""The options of every command that looks at a running system, and the connection they describe.

The options that every role's command has, as one decorator.

@click.command()
@role_options(RecorderSettings)
def record(config: Config) -> None:
    run_role("recorder", config, lambda: Recorder(config[RecorderSettings]))
"""

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
from ..runtime.config.config import Config
from ..runtime.config.sources import FILE_VARIABLE, Origin, Override
from ..runtime.config.spec import FieldSpec, TableSpec, role_of, spec_of
from ..runtime.config.toml import Path as KeyPath
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
class ConnectOptions:
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
        ctx.report_options = ReportOptions.none()
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


def connect_options(command: _Command) -> _Command:
    """Adds --config, --aeron-dir, --timeout and --json; the command gets them as `to`."""

    @functools.wraps(command)
    def wrapped(
        config: str | None, aeron_dir: str | None, timeout: float, as_json: bool, **rest: Any
    ) -> None:
        command(to=ConnectOptions(config, aeron_dir, timeout, as_json), **rest)

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


_Callback = Callable[..., Any]
_Decorator = Callable[[_Callback], _Callback]


def role_options(*classes: type[Any], also: Callable[[Config], None] = lambda _: None) -> _Decorator:
    """Adds --config, --check, --print-config, --set and a flag for each setting that declares one.

    The command gets `config` with the settings of `classes`, `[runtime]` and `[log]`. `also` raises
    ConfigError for tables that do not fit together.
    """
    from ..runtime.role import LogSettings, RuntimeSettings

    everything = (*classes, RuntimeSettings, LogSettings)
    flags = [(path, one) for cls in everything for path, one in _flagged(spec_of(cls), (role_of(cls),))]

    def decorate(command: _Callback) -> _Callback:
        @functools.wraps(command)
        def wrapped(
            config_file: Path | None,
            settings: tuple[str, ...],
            check: bool,
            print_config: bool,
            verbose: bool,
            **rest: Any,
        ) -> Any:
            given = dict(_given(flags, rest))
            given |= dict(_parse_set(text) for text in settings)
            if verbose:
                given[("log", "level")] = Override("debug", Origin("flag", "-v"))
            config = Config.load(*everything, file=_file(config_file), environ=os.environ, flags=given)
            also(config)
            if print_config:
                click.echo(config.to_toml(), nl=False)
            elif check:
                click.echo(f"the configuration is good ({config.file or 'no file'})", err=True)
            else:
                return command(config=config, **rest)
            return None

        decorated: _Callback = wrapped
        options: list[_Decorator] = [*_COMMON, *(_option(path, one) for path, one in flags)]
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


_COMMON: list[_Decorator] = [
    click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path, dir_okay=False),
        help=f"The configuration, in TOML. Else the file that {FILE_VARIABLE} names, else defaults.",
    ),
    click.option(
        "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any setting: log.level=debug."
    ),
    click.option("--check", is_flag=True, help="Only check the configuration."),
    click.option("--print-config", is_flag=True, help="Only print what is in force, and where it came from."),
    click.option("-v", "--verbose", is_flag=True, help="Say more: the same as --log-level debug."),
]


def _file(option: Path | None) -> Path | None:
    named = os.environ.get(FILE_VARIABLE)
    return option or (Path(named) if named else None)


def _flagged(table: TableSpec, path: KeyPath) -> Iterator[tuple[KeyPath, FieldSpec]]:
    for key, one in table.fields.items():
        if one.nested is not None and not one.is_array:
            yield from _flagged(one.nested, (*path, key))
        elif one.flag is not None:
            yield (*path, key), one


def _option(path: KeyPath, one: FieldSpec) -> _Decorator:
    name, kind = _parameter(path), one.kind
    assert one.flag is not None, "only those with a flag come here"
    words = (
        one.doc if one.is_required or one.default in (None, (), "") else f"{one.doc} [default: {_shown(one)}]"
    )
    if kind is not None and kind.name == "true or false":
        off = "--no-" + one.flag.removeprefix("--")
        return click.option(f"{one.flag}/{off}", name, default=None, help=words)
    metavar = "|".join(kind.choices) if kind and kind.choices else _metavar(one)
    return click.option(
        one.flag, name, metavar=metavar, multiple=kind is not None and kind.is_list, default=None, help=words
    )


def _metavar(one: FieldSpec) -> str:
    kind = one.kind.name.removeprefix("list of ") if one.kind else "TOML"
    return kind.upper().replace(" ", "_")


def _shown(one: FieldSpec) -> str:
    return one.kind.literal(one.default).strip('"') if one.kind and not one.is_secret else "none"


def _parameter(path: KeyPath) -> str:
    return "__".join(str(part) for part in path)


def _given(
    flags: list[tuple[KeyPath, FieldSpec]], rest: dict[str, Any]
) -> Iterator[tuple[KeyPath, Override]]:
    """Takes our own parameters out of the command's, and keeps those that were used."""
    for path, one in flags:
        value = rest.pop(_parameter(path))
        if value is None or value == ():
            continue
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        yield path, Override(text, Origin("flag", str(one.flag)))


def _parse_set(text: str) -> tuple[KeyPath, Override]:
    key, equals, value = text.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or len(path) < 2 or not all(path):
        raise click.BadParameter("write TABLE.KEY=VALUE, as in log.level=debug", param_hint="--set")
    return path, Override(value, Origin("flag", "--set"))
