"""Options that commands share, as decorators.

`connect_options`: for commands that read a running system. `role_options`: for commands that run a role:

@click.command()
@role_options(RecorderSettings)
def record(config: Config) -> None:
    run_role("recorder", config, lambda: Recorder(config[RecorderSettings]))
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, MutableMapping
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
from ..runtime.config.toml_text import Path as KeyPath
from ..service import ServiceClient
from ..shm.inspect import user_of
from ..transport import default_aeron_dir
from ..transport.media_driver import MARK_FILE, read_mark_file

_SECONDS = click.FloatRange(0, 86_400)
_CONNECT_TIMEOUT_S = 3.0
_STALE_S = 10.0
"""The age of a heartbeat at which Aeron's own clients give a media driver up."""
_Command = Callable[..., Any]
_Decorator = Callable[[_Command], _Command]

token_option = click.option(
    "--token",
    envvar="TENSORPOOL_TOKEN",
    help="The token of the service, for commands that need it. [TENSORPOOL_TOKEN]",
)


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """How to reach the running system, and whether to print JSON."""

    config: str | None
    aeron_dir: str | None
    timeout: float
    json_output: bool

    @contextmanager
    def context(self) -> Iterator[context.Context]:
        """A context that embeds neither a media driver nor an SHM driver, and takes no lease.

        An embedded one would hide that the intended driver is not running.
        """
        config = load_config(self.config)
        aeron_dir = str(self.aeron_dir or config[AeronSettings].dir or default_aeron_dir())
        if _is_gone(Path(aeron_dir)):
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
        # A command that only reads does not report on itself.
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


def _is_gone(aeron_dir: Path) -> bool:
    """Whether no media driver can answer: none was started there, or its heartbeat is stale.

    A driver that is starting, or that missed a few heartbeats, is waited for.
    """
    try:
        mark = read_mark_file(aeron_dir)
    except MediaDriverError:
        return not os.access(aeron_dir, os.R_OK | os.X_OK)
    if mark is None:
        return not aeron_dir.is_dir()
    ended = mark.heartbeat_ms < 0
    return ended or (mark.heartbeat_ms > 0 and mark.age_s(time.time_ns()) > _STALE_S)


def _is_stopped(aeron_dir: Path) -> bool:
    """Whether the process of the media driver exists, though its heartbeat is stale."""
    with suppress(MediaDriverError):
        mark = read_mark_file(aeron_dir)
        return mark is not None and mark.is_in_use()
    return False


def _unavailable(aeron_dir: str) -> MediaDriverUnavailable:
    """The error with its reason and a remedy for the command line."""
    directory = Path(aeron_dir)
    remedy = (
        "start tensorpool driver or a program that embeds one, or name another directory with --aeron-dir"
    )
    if directory.is_dir() and not os.access(directory, os.R_OK | os.X_OK):
        owner = user_of(directory.stat().st_uid)
        message = f"{directory} belongs to {owner}, and you have no access to it; see tensorpool doctor"
    elif not (directory / MARK_FILE).exists():
        message = f"no media driver is running in {directory}; {remedy}"
    elif _is_gone(directory) and not _is_stopped(directory):
        message = f"the media driver in {directory} no longer runs; {remedy}"
    else:
        message = f"the media driver in {directory} does not answer; see tensorpool doctor"
    return MediaDriverUnavailable(message, aeron_dir=aeron_dir)


def connect_options(command: _Command) -> _Command:
    """Adds --config, --aeron-dir, --timeout and --json; the command receives them as `to`."""

    @functools.wraps(command)
    def wrapped(
        config: str | None, aeron_dir: str | None, timeout: float, json_output: bool, **rest: Any
    ) -> None:
        command(to=ConnectOptions(config, aeron_dir, timeout, json_output), **rest)

    decorated: _Command = wrapped
    for option in (
        click.option("--config", type=click.Path(dir_okay=False), help="A TOML file. [TENSORPOOL_CONFIG]"),
        click.option("--aeron-dir", help="Directory of the media driver. [AERON_DIR, else Aeron's default]"),
        click.option(
            "--timeout", default=5.0, show_default=True, type=_SECONDS, help="Seconds to wait for an answer."
        ),
        click.option("--json", "json_output", is_flag=True, help="JSON on stdout."),
    ):
        decorated = option(decorated)
    return decorated


def role_options(*classes: type[Any], also: Callable[[Config], None] = lambda _: None) -> _Decorator:
    """Adds --config, --check, --print-config, --set and a flag for each setting that declares one.

    The command receives `config` with the settings of `classes`, `[runtime]` and `[log]`. `also` raises
    ConfigError for tables that do not fit together.
    """
    from ..runtime.role import LogSettings, RuntimeSettings

    tables = (*classes, RuntimeSettings, LogSettings)
    flags = [flag for cls in tables for flag in _flags_of(spec_of(cls), (role_of(cls),))]

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def wrapped(
            config_file: Path | None,
            settings: tuple[str, ...],
            check: bool,
            print_config: bool,
            verbose: bool,
            **rest: Any,
        ) -> Any:
            overrides = dict(_overrides(flags, rest))
            overrides |= dict(_parse_set(text) for text in settings)
            if verbose:
                overrides[("log", "level")] = Override("debug", Origin("flag", "-v"))
            config = Config.load(*tables, file=_file(config_file), environ=os.environ, flags=overrides)
            also(config)
            if print_config:
                click.echo(config.to_toml(), nl=False)
            elif check:
                click.echo(f"the configuration is good ({config.file or 'no file'})", err=True)
            else:
                return command(config=config, **rest)
            return None

        decorated: _Command = wrapped
        options: list[_Decorator] = [*_COMMON, *(_option(path, field) for path, field in flags)]
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
    click.option("--print-config", is_flag=True, help="Only print the settings in force, and their origins."),
    click.option("-v", "--verbose", is_flag=True, help="The same as --log-level debug."),
]


def _file(option: Path | None) -> Path | None:
    name = os.environ.get(FILE_VARIABLE)
    return option or (Path(name) if name else None)


def _flags_of(table: TableSpec, path: KeyPath) -> Iterator[tuple[KeyPath, FieldSpec]]:
    """The settings of a table that have a flag of their own."""
    for key, field in table.fields.items():
        if field.nested is not None and not field.is_array:
            yield from _flags_of(field.nested, (*path, key))
        elif field.flag is not None:
            yield (*path, key), field


def _option(path: KeyPath, field: FieldSpec) -> _Decorator:
    name, kind = _parameter(path), field.kind
    assert field.flag is not None, "only settings with a flag become options"
    text = field.doc
    if not field.is_required and field.default not in (None, (), ""):
        text += f" [default: {_default_text(field)}]"
    if kind is not None and kind.name == "true or false":
        off = "--no-" + field.flag.removeprefix("--")
        return click.option(f"{field.flag}/{off}", name, default=None, help=text)
    metavar = "|".join(kind.choices) if kind and kind.choices else _metavar(field)
    is_list = kind is not None and kind.is_list
    return click.option(field.flag, name, metavar=metavar, multiple=is_list, default=None, help=text)


def _metavar(field: FieldSpec) -> str:
    kind = field.kind.name.removeprefix("list of ") if field.kind else "TOML"
    return kind.upper().replace(" ", "_")


def _default_text(field: FieldSpec) -> str:
    return field.kind.literal(field.default).strip('"') if field.kind and not field.is_secret else "none"


def _parameter(path: KeyPath) -> str:
    return "__".join(str(part) for part in path)


def _overrides(
    flags: list[tuple[KeyPath, FieldSpec]], parameters: MutableMapping[str, Any]
) -> Iterator[tuple[KeyPath, Override]]:
    """Removes the flags' parameters from those of the command, and yields the flags that were used."""
    for path, field in flags:
        value = parameters.pop(_parameter(path))
        if value is None or value == ():
            continue
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        yield path, Override(text, Origin("flag", str(field.flag)))


def _parse_set(text: str) -> tuple[KeyPath, Override]:
    key, equals, value = text.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or len(path) < 2 or not all(path):
        raise click.BadParameter("write TABLE.KEY=VALUE, as in log.level=debug", param_hint="--set")
    return path, Override(value, Origin("flag", "--set"))
