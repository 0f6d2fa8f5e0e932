"""The options that every role's command has, as one decorator.

@click.command()
@role_options(RecorderSettings)
def record(config: Config) -> None:
    run_role("recorder", config, lambda: Recorder(config[RecorderSettings]))
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from .config import Config
from .sources import FILE_VARIABLE, Origin, Override
from .spec import FieldSpec, TableSpec, role_of, spec_of
from .toml import Path as KeyPath

_Command = Callable[..., Any]
_Decorator = Callable[[_Command], _Command]


def role_options(*classes: type[Any], also: Callable[[Config], None] = lambda _: None) -> _Decorator:
    """Adds --config, --check, --print-config, --set and a flag for each setting that declares one.

    The command gets `config` with the settings of `classes`, `[runtime]` and `[log]`. `also` raises
    ConfigError for tables that do not fit together.
    """
    from ..role import LogSettings, RuntimeSettings

    everything = (*classes, RuntimeSettings, LogSettings)
    flags = [(path, one) for cls in everything for path, one in _flagged(spec_of(cls), (role_of(cls),))]

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

        decorated: _Command = wrapped
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
