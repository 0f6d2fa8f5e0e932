"""Configurations: settings built from their sources with all problems collected, reloads, and TOML output.

Each value has an origin, which errors and the TOML output name.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from ...errors import ConfigError, ConfigProblem, InvalidConfig
from . import toml_text
from .kinds import inline
from .sources import (
    DEFAULT,
    Document,
    Origin,
    Override,
    dotted,
    from_environment,
    is_leaf,
    leaves,
    read_document,
    variable,
)
from .spec import ROLES, FieldSpec, TableSpec, known_tables, role_of, spec_of
from .toml_text import Path as KeyPath

T = TypeVar("T")
# Characters of a value that an error shows.
_MAX_SHOWN: Final = 60


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that is most similar to a misspelt name; None if none is close."""
    matches = difflib.get_close_matches(name.lower(), list(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None


class Builder:
    """Builds the settings of one role. `problems` is empty for a valid configuration."""

    def __init__(self, role: str, document: Document, overrides: Mapping[KeyPath, Override]) -> None:
        self._role = role
        self._document = document
        self._overrides = overrides
        self.problems: list[ConfigProblem] = []
        self.origins: dict[KeyPath, Origin] = {}

    def build(self, table: TableSpec) -> Any:
        """The settings object, or None after a problem."""
        self._refuse_unknown_overrides(table)
        return self._table(table, self._document.tables.get(self._role, {}), (self._role,), None, None)

    def _table(
        self, table: TableSpec, data: object, path: KeyPath, base: Any, given_by: Origin | None
    ) -> Any:
        """`base` has the defaults. `given_by` is the origin of the whole table; None: the file."""
        origin = given_by or self._document.origin(path)
        if not isinstance(data, dict):
            self._problem("not a table", path, origin, None if table.has_secrets else data)
            return None
        before = len(self.problems)
        for key in data:
            if key not in table.fields:
                key_origin = given_by or self._document.origin((*path, key))
                moved = self._in_other_table((*path, key))
                suggestion = dotted(moved) if moved else nearest(key, table.fields)
                self._problem("no such key", (*path, key), key_origin, suggestion=suggestion)
        values = {
            field.attribute: self._field(field, data, (*path, field.key), base, given_by)
            for field in table.fields.values()
        }
        if len(self.problems) > before:
            return None
        settings = table.cls(**values)
        self._check_together(settings, table, path, origin)
        return settings

    def _field(
        self, field: FieldSpec, data: Mapping[str, Any], path: KeyPath, base: Any, given_by: Origin | None
    ) -> Any:
        default = field.default if base is None else getattr(base, field.attribute)
        if field.nested is not None and not field.is_array:
            inner = None if default is MISSING else default
            return self._table(field.nested, data.get(field.key, {}), path, inner, given_by)
        override = self._overrides.get(path)
        if override is not None:
            self.origins[path] = override.origin
            return self._read(field, path, override.text, override.origin, is_text=True)
        if field.key in data:
            self.origins[path] = given_by or self._document.origin(path)
            return self._read(field, path, data[field.key], self.origins[path], given_by=given_by)
        self.origins[path] = DEFAULT
        if default is MISSING:
            # Entries of an array have no environment variables.
            is_entry = any(isinstance(part, int) for part in path)
            reason = "missing" if is_entry else f"missing; set it in the file, or {variable(path)}"
            self._problem(reason, path, given_by or self._document.origin(path[:-1]))
            return None
        if field.is_array:
            for index in range(len(default)):
                self._set_default_origins(field.nested, (*path, index))
        return default

    def _set_default_origins(self, table: TableSpec | None, path: KeyPath) -> None:
        for leaf in leaves(table) if table else ():
            self.origins[(*path, *leaf)] = DEFAULT

    def _read(
        self,
        field: FieldSpec,
        path: KeyPath,
        value: Any,
        origin: Origin,
        *,
        is_text: bool = False,
        given_by: Origin | None = None,
    ) -> Any:
        before = len(self.problems)
        try:
            if field.nested is not None:
                entries = inline(value) if is_text else value
                return self._array(field.nested, entries, path, origin if is_text else given_by)
            assert field.kind is not None, "a field is a table or has a kind"
            read = field.kind.read_text(value) if is_text else field.kind.read(value)
            if fault := field.value_fault(read):
                raise ConfigError(fault)
            return read
        except ConfigError as error:
            if len(self.problems) == before:
                choices = field.kind.choices if field.kind else ()
                suggestion = nearest(value, choices) if isinstance(value, str) and choices else None
                shown = None if field.is_secret else value
                self._problem(str(error), path, origin, shown, suggestion=suggestion)
            return None

    def _array(self, table: TableSpec, entries: object, path: KeyPath, given_by: Origin | None) -> Any:
        if not isinstance(entries, list):
            raise ConfigError(f"not an array of tables; write [[{dotted(path)}]]")
        return tuple(
            self._table(table, entry, (*path, index), None, given_by) for index, entry in enumerate(entries)
        )

    def _check_together(self, settings: Any, table: TableSpec, path: KeyPath, origin: Origin) -> None:
        """Runs the settings' own `check`, which compares values with each other."""
        check = getattr(settings, "check", None)
        for key, reason in check() if check is not None else ():
            key_path = (*path, key)
            field = table.fields.get(key)
            shown = None
            if field is not None and field.kind is not None and not field.is_secret:
                value = getattr(settings, field.attribute)
                shown = None if value is None else field.kind.write(value)
            key_origin = self.origins.get(key_path, origin)
            self._problem(reason, key_path, origin if key_origin is DEFAULT else key_origin, shown)

    def _refuse_unknown_overrides(self, table: TableSpec) -> None:
        # Without the role: it is the same in all, and would make any two keys similar.
        known = {dotted(leaf): (self._role, *leaf) for leaf in leaves(table)}
        for path, override in self._overrides.items():
            if not is_leaf(table, path[1:]):
                best = self._in_other_table(path)
                if best is None and (near := nearest(dotted(path[1:]), known)) is not None:
                    best = known[near]
                write = variable if override.origin.kind == "environment" else dotted
                suggestion = None if best is None else write(best)
                self._problem("no such key", path, override.origin, suggestion=suggestion)

    def _in_other_table(self, path: KeyPath) -> KeyPath | None:
        """The same key in the table of another role, if exactly one has it."""
        others = [
            role for role, cls in ROLES.items() if role != self._role and is_leaf(spec_of(cls), path[1:])
        ]
        return (others[0], *path[1:]) if len(others) == 1 else None

    def _problem(
        self,
        reason: str,
        path: KeyPath,
        origin: Origin,
        value: object = None,
        *,
        suggestion: str | None = None,
    ) -> None:
        shown = None if value is None else _shortened(value)
        self.problems.append(
            ConfigProblem(
                reason,
                key=dotted(path),
                value=shown,
                source=None if origin is DEFAULT else origin.source or None,
                line=origin.line,
                suggestion=suggestion,
            )
        )


def _shortened(value: object) -> str:
    try:
        shown = toml_text.literal(value)
    except UnicodeEncodeError:
        shown = ascii(value)
    return shown if len(shown) <= _MAX_SHOWN else shown[: _MAX_SHOWN - 1] + "…"


def render_tables(table: TableSpec, settings: Any, path: KeyPath, origins: Mapping[KeyPath, Origin]) -> str:
    """The TOML of one role's table and the tables below it, with the origin of each value as a comment."""
    return "\n".join(_lines(table, settings, path, origins, is_entry=False))


def _lines(
    table: TableSpec, settings: Any, path: KeyPath, origins: Mapping[KeyPath, Origin], *, is_entry: bool
) -> Iterator[str]:
    name = ".".join(toml_text.key(part) for part in path if isinstance(part, str))
    yield f"[[{name}]]" if is_entry else f"[{name}]"
    # Plain keys come first: after the header of a nested table they would belong to that table.
    for field in table.fields.values():
        value = getattr(settings, field.attribute)
        if field.nested is None or (field.is_array and not value):
            yield _line(field, value, origins.get((*path, field.key), DEFAULT))
    for field in table.fields.values():
        if field.nested is None:
            continue
        value = getattr(settings, field.attribute)
        for index, entry in enumerate(value) if field.is_array else ():
            yield ""
            yield from _lines(field.nested, entry, (*path, field.key, index), origins, is_entry=True)
        if not field.is_array:
            yield ""
            yield from _lines(field.nested, value, (*path, field.key), origins, is_entry=False)


def _line(field: FieldSpec, value: Any, origin: Origin) -> str:
    comment = "".join(ch if ch.isprintable() else "?" for ch in str(origin))
    key = toml_text.key(field.key)
    if field.nested is not None:
        return f"{key} = []  # {comment}"
    assert field.kind is not None, "a field is a table or has a kind"
    if value is None:
        return f"# {key} is not set  # {comment}"
    if field.is_secret:
        return f"# {key} is set, and not shown  # {comment}"
    return f"{key} = {field.kind.literal(value)}  # {comment}"


@dataclass(frozen=True, slots=True)
class Change:
    """A key whose value differs after a reload."""

    path: KeyPath
    live: bool
    """False: the old value stays in force until a restart."""

    @property
    def key(self) -> str:
        """The key path as text."""
        return dotted(self.path)


class Config:
    """Settings by their class: `config[RecorderSettings].out`. Created by `load`."""

    def __init__(self, sources: _Sources) -> None:
        self._sources = sources
        self._settings, self._origins = sources.read()

    @classmethod
    def load(
        cls,
        *classes: type[Any],
        file: Path | None = None,
        tables: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] = os.environ,
        flags: Mapping[KeyPath, Override] | None = None,
    ) -> Config:
        """Reads the tables of `classes` from a file (or from `tables`, already parsed), then the
        environment, then flags. Raises InvalidConfig with all problems."""
        return cls(_Sources(classes, file, tables, dict(environ), dict(flags or {})))

    def __getitem__(self, cls: type[T]) -> T:
        return cast("T", self._settings[cls])

    @property
    def file(self) -> Path | None:
        """The configuration file; None without field."""
        return self._sources.file

    @property
    def tables(self) -> list[str]:
        """The tables that were read, one for each settings class."""
        return [role_of(cls) for cls in self._settings]

    def origin(self, cls: type[Any], *path: str | int) -> Origin:
        """The origin of a value: `config.origin(DriverSettings, "limits", "leases")`."""
        return self._origins.get((role_of(cls), *path), DEFAULT)

    def to_toml(self) -> str:
        """The settings in force as a TOML file, each value with its origin. Secrets are omitted."""
        parts = [
            render_tables(spec_of(cls), settings, (role_of(cls),), self._origins)
            for cls, settings in self._settings.items()
        ]
        return "\n\n".join(parts) + "\n"

    def reload(self) -> list[Change]:
        """Reads all sources again and applies changes of live settings. Raises InvalidConfig for an invalid
        configuration, and then changes nothing."""
        fresh, origins = self._sources.read()
        changes: list[Change] = []
        for cls, old in self._settings.items():
            self._settings[cls] = _merge(spec_of(cls), old, fresh[cls], (role_of(cls),), changes)
        kept = [change.path for change in changes if not change.live]
        self._origins = {
            **{path: origin for path, origin in origins.items() if not _is_below(path, kept)},
            **{path: origin for path, origin in self._origins.items() if _is_below(path, kept)},
        }
        return changes


@dataclass(frozen=True)
class _Sources:
    """The sources of a configuration, kept for reloads."""

    classes: tuple[type[Any], ...]
    file: Path | None
    tables: Mapping[str, Any] | None
    environ: Mapping[str, str]
    flags: Mapping[KeyPath, Override]

    def read(self) -> tuple[dict[type[Any], Any], dict[KeyPath, Origin]]:
        """Settings by class, and the origin of each value. Raises InvalidConfig with all problems."""
        document = self._document()
        if isinstance(document, ConfigProblem):
            raise InvalidConfig([document])
        roles = {role_of(cls): cls for cls in self.classes}
        problems = list(_unknown_tables(document, roles))
        settings: dict[type[Any], Any] = {}
        origins: dict[KeyPath, Origin] = {}
        for role, cls in roles.items():
            overrides = dict(from_environment(role, self.environ))
            overrides |= {path: override for path, override in self.flags.items() if path[0] == role}
            builder = Builder(role, document, overrides)
            settings[cls] = builder.build(spec_of(cls))
            problems += builder.problems
            origins |= builder.origins
        for path, override in self.flags.items():
            if path[0] not in roles:
                best, source = nearest(str(path[0]), roles), override.origin.source
                problems.append(
                    ConfigProblem("no such table", key=dotted(path), source=source, suggestion=best)
                )
        if problems:
            raise InvalidConfig(problems)
        return settings, origins

    def _document(self) -> Document | ConfigProblem:
        if self.file is not None:
            return read_document(self.file)
        return Document("", self.tables or {})


def _unknown_tables(document: Document, roles: Iterable[str]) -> Iterable[ConfigProblem]:
    known = known_tables(roles)
    for name, value in document.tables.items():
        if name in known:
            continue
        origin = document.origin((name,))
        reason = "no such table" if isinstance(value, dict | list) else "a key outside of any table"
        yield ConfigProblem(reason, name, None, origin.name or None, origin.line, nearest(name, known))


def check_file(path: Path) -> Config:
    """Reads every table of a file whose role's module was imported. Raises InvalidConfig."""
    document = read_document(path)
    named = document.tables if isinstance(document, Document) else {}
    return Config.load(*(cls for role, cls in ROLES.items() if role in named), file=path, environ={})


def _is_below(path: KeyPath, roots: Iterable[KeyPath]) -> bool:
    return any(path[: len(root)] == root for root in roots)


def _merge(table: TableSpec, old: Any, new: Any, path: KeyPath, changes: list[Change]) -> Any:
    """The old settings with the live values of the new settings. Appends all differences to `changes`."""
    applied: dict[str, object] = {}
    for field in table.fields.values():
        before, after = getattr(old, field.attribute), getattr(new, field.attribute)
        if before == after:
            continue
        key_path = (*path, field.key)
        if field.nested is not None and not field.is_array:
            applied[field.attribute] = _merge(field.nested, before, after, key_path, changes)
            continue
        changes.append(Change(key_path, field.live))
        if field.live:
            applied[field.attribute] = after
    return dataclasses.replace(old, **applied) if applied else old
