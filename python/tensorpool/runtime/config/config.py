"""A configuration: the settings of a role and of what it runs on, and where each value came from.

From tables and overrides to settings, with every problem on the way collected.

Settings as TOML, with the origin of each value beside it.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from ...errors import ConfigError, ConfigProblem, InvalidConfig
from . import toml
from .kinds import inline
from .sources import (
    DEFAULT,
    Document,
    Origin,
    Override,
    dotted,
    from_environment,
    leaves,
    lookup,
    read_document,
    variable,
)
from .spec import ROLES, FieldSpec, TableSpec, known_tables, role_of, spec_of
from .toml import Path as KeyPath

_SHOWN = 60


def nearest(word: str, words: Iterable[str]) -> str | None:
    found = difflib.get_close_matches(word.lower(), list(words), n=1, cutoff=0.6)
    return found[0] if found else None


class Builder:
    """Builds the settings of one role. `problems` is empty if all went well."""

    def __init__(self, role: str, document: Document, overrides: Mapping[KeyPath, Override]) -> None:
        self._role = role
        self._document = document
        self._overrides = overrides
        self.problems: list[ConfigProblem] = []
        self.origins: dict[KeyPath, Origin] = {}

    def build(self, table: TableSpec) -> Any:
        """The settings object, or None where there is a problem."""
        self._refuse_unknown_overrides(table)
        return self._table(table, self._document.tables.get(self._role, {}), (self._role,), None, None)

    def _table(
        self, table: TableSpec, data: object, path: KeyPath, base: Any, given_by: Origin | None
    ) -> Any:
        """`base`: where defaults come from. `given_by`: the one origin of all of it, else the file."""
        origin = given_by or self._document.origin(path)
        if not isinstance(data, dict):
            self._problem("not a table", path, origin, None if table.has_secrets else data)
            return None
        before = len(self.problems)
        for key in data:
            if key not in table.fields:
                where = given_by or self._document.origin((*path, key))
                self._problem("no such key", (*path, key), where, suggestion=nearest(key, table.fields))
        values = {
            one.attribute: self._field(one, data, (*path, one.key), base, given_by)
            for one in table.fields.values()
        }
        if len(self.problems) > before:
            return None
        made = table.cls(**values)
        self._check_whole(made, table, path, origin)
        return made

    def _field(
        self, one: FieldSpec, data: Mapping[str, Any], path: KeyPath, base: Any, given_by: Origin | None
    ) -> Any:
        default = one.default if base is None else getattr(base, one.attribute)
        if one.nested is not None and not one.is_array:
            inner = None if default is MISSING else default
            return self._table(one.nested, data.get(one.key, {}), path, inner, given_by)
        override = self._overrides.get(path)
        if override is not None:
            self.origins[path] = override.origin
            return self._read(one, path, override.text, override.origin, is_text=True)
        if one.key in data:
            self.origins[path] = given_by or self._document.origin(path)
            return self._read(one, path, data[one.key], self.origins[path], given_by=given_by)
        self.origins[path] = DEFAULT
        if default is MISSING:
            # Entries of an array have no variables of their own.
            is_entry = any(isinstance(part, int) for part in path)
            reason = "missing" if is_entry else f"missing; set it in the file, or {variable(path)}"
            self._problem(reason, path, given_by or self._document.origin(path[:-1]))
            return None
        if one.is_array:
            for index in range(len(default)):
                self._note_defaults(one.nested, (*path, index))
        return default

    def _note_defaults(self, table: TableSpec | None, path: KeyPath) -> None:
        for leaf in leaves(table) if table else ():
            self.origins[(*path, *leaf)] = DEFAULT

    def _read(
        self,
        one: FieldSpec,
        path: KeyPath,
        value: Any,
        origin: Origin,
        *,
        is_text: bool = False,
        given_by: Origin | None = None,
    ) -> Any:
        before = len(self.problems)
        try:
            if one.nested is not None:
                entries = inline(value) if is_text else value
                return self._array(one.nested, entries, path, origin if is_text else given_by)
            assert one.kind is not None, "a field is a table or has a kind"
            read = one.kind.read_text(value) if is_text else one.kind.read(value)
            if why := one.why_not(read):
                raise ConfigError(why)
            return read
        except ConfigError as error:
            if len(self.problems) == before:
                choices = one.kind.choices if one.kind else ()
                suggestion = nearest(value, choices) if isinstance(value, str) and choices else None
                shown = None if one.is_secret else value
                self._problem(str(error), path, origin, shown, suggestion=suggestion)
            return None

    def _array(self, table: TableSpec, entries: object, path: KeyPath, given_by: Origin | None) -> Any:
        if not isinstance(entries, list):
            raise ConfigError(f"not an array of tables; write [[{dotted(path)}]]")
        return tuple(
            self._table(table, entry, (*path, index), None, given_by) for index, entry in enumerate(entries)
        )

    def _check_whole(self, made: Any, table: TableSpec, path: KeyPath, origin: Origin) -> None:
        check = getattr(made, "check", None)
        for key, reason in check() if check is not None else ():
            at = (*path, key)
            one = table.fields.get(key)
            shown = None
            if one is not None and one.kind is not None and not one.is_secret:
                value = getattr(made, one.attribute)
                shown = None if value is None else one.kind.write(value)
            came_by = self.origins.get(at, origin)
            self._problem(reason, at, origin if came_by is DEFAULT else came_by, shown)

    def _refuse_unknown_overrides(self, table: TableSpec) -> None:
        known = {dotted((self._role, *leaf)): (self._role, *leaf) for leaf in leaves(table)}
        for path, override in self._overrides.items():
            if not lookup(table, path[1:]):
                best = nearest(dotted(path), known)
                if best is not None and override.origin.kind == "environment":
                    best = variable(known[best])
                self._problem("no such key", path, override.origin, suggestion=best)

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
        shown = toml.literal(value)
    except UnicodeEncodeError:
        shown = ascii(value)
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"


def render_tables(table: TableSpec, made: Any, path: KeyPath, origins: Mapping[KeyPath, Origin]) -> str:
    """One role's table and those below it."""
    return "\n".join(_lines(table, made, path, origins, is_entry=False))


def _lines(
    table: TableSpec, made: Any, path: KeyPath, origins: Mapping[KeyPath, Origin], *, is_entry: bool
) -> Iterator[str]:
    name = ".".join(toml.key(part) for part in path if isinstance(part, str))
    yield f"[[{name}]]" if is_entry else f"[{name}]"
    # Plain keys come first: after the first table below they would belong to that one.
    for one in table.fields.values():
        value = getattr(made, one.attribute)
        if one.nested is None or (one.is_array and not value):
            yield _line(one, value, origins.get((*path, one.key), DEFAULT))
    for one in table.fields.values():
        if one.nested is None:
            continue
        value = getattr(made, one.attribute)
        for index, entry in enumerate(value) if one.is_array else ():
            yield ""
            yield from _lines(one.nested, entry, (*path, one.key, index), origins, is_entry=True)
        if not one.is_array:
            yield ""
            yield from _lines(one.nested, value, (*path, one.key), origins, is_entry=False)


def _line(one: FieldSpec, value: Any, origin: Origin) -> str:
    came_by = "".join(ch if ch.isprintable() else "?" for ch in str(origin))
    key = toml.key(one.key)
    if one.nested is not None:
        return f"{key} = []  # {came_by}"
    assert one.kind is not None, "a field is a table or has a kind"
    if value is None:
        return f"# {key} is not set  # {came_by}"
    if one.is_secret:
        return f"# {key} is set, and not shown  # {came_by}"
    return f"{key} = {one.kind.literal(value)}  # {came_by}"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change:
    """A key whose value is another one after a reload."""

    path: KeyPath
    live: bool
    """False: it was left as it was, and takes effect at the next start."""

    @property
    def key(self) -> str:
        return dotted(self.path)


class Config:
    """Settings by their class: `config[RecorderSettings].out`. Made by `load`."""

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
        environment, then flags. Raises InvalidConfig with everything that is wrong."""
        return cls(_Sources(classes, file, tables, dict(environ), dict(flags or {})))

    def __getitem__(self, cls: type[T]) -> T:
        return cast("T", self._settings[cls])

    @property
    def file(self) -> Path | None:
        return self._sources.file

    def origin(self, cls: type[Any], *path: str | int) -> Origin:
        """Where a value came from: `config.origin(DriverSettings, "limits", "leases")`."""
        return self._origins.get((role_of(cls), *path), DEFAULT)

    def to_toml(self) -> str:
        """What is in force, as a file that would bring it about, each value with where it came from.
        Secrets are left out."""
        parts = [
            render_tables(spec_of(cls), made, (role_of(cls),), self._origins)
            for cls, made in self._settings.items()
        ]
        return "\n\n".join(parts) + "\n"

    def reload(self) -> list[Change]:
        """Reads everything again and takes over what may change live. Raises InvalidConfig, and keeps
        what was, if it can no longer be used."""
        fresh, origins = self._sources.read()
        changes: list[Change] = []
        for cls, old in self._settings.items():
            path: KeyPath = (role_of(cls),)
            merged = _merge(spec_of(cls), old, fresh[cls], path, changes)
            self._settings[cls] = merged
        kept = [change.path for change in changes if not change.live]
        self._origins = {
            **{at: one for at, one in origins.items() if not _is_below(at, kept)},
            **{at: one for at, one in self._origins.items() if _is_below(at, kept)},
        }
        return changes


@dataclass(frozen=True)
class _Sources:
    """What a configuration is read from, and again at a reload."""

    classes: tuple[type[Any], ...]
    file: Path | None
    tables: Mapping[str, Any] | None
    environ: Mapping[str, str]
    flags: Mapping[KeyPath, Override]

    def read(self) -> tuple[dict[type[Any], Any], dict[KeyPath, Origin]]:
        document = self._document()
        if isinstance(document, ConfigProblem):
            raise InvalidConfig([document])
        roles = {role_of(cls): cls for cls in self.classes}
        problems = list(_unknown_tables(document, roles))
        settings: dict[type[Any], Any] = {}
        origins: dict[KeyPath, Origin] = {}
        for role, cls in roles.items():
            overrides = dict(from_environment(role, self.environ))
            overrides |= {path: one for path, one in self.flags.items() if path[0] == role}
            builder = Builder(role, document, overrides)
            settings[cls] = builder.build(spec_of(cls))
            problems += builder.problems
            origins |= builder.origins
        for path, one in self.flags.items():
            if path[0] not in roles:
                best = nearest(str(path[0]), roles)
                problem = ConfigProblem("no such table", dotted(path), None, one.origin.source, None, best)
                problems.append(problem)
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
    """Reads every table of a file whose role is known here. Raises InvalidConfig."""
    document = read_document(path)
    named = document.tables if isinstance(document, Document) else {}
    return Config.load(*(cls for role, cls in ROLES.items() if role in named), file=path, environ={})


def _is_below(path: KeyPath, roots: Iterable[KeyPath]) -> bool:
    return any(path[: len(root)] == root for root in roots)


def _merge(table: TableSpec, old: Any, new: Any, path: KeyPath, changes: list[Change]) -> Any:
    """The old settings with what may change live taken from the new ones."""
    taken: dict[str, Any] = {}
    for one in table.fields.values():
        before, after = getattr(old, one.attribute), getattr(new, one.attribute)
        if before == after:
            continue
        at = (*path, one.key)
        if one.nested is not None and not one.is_array:
            taken[one.attribute] = _merge(one.nested, before, after, at, changes)
            continue
        changes.append(Change(at, one.live))
        if one.live:
            taken[one.attribute] = after
    return dataclasses.replace(old, **taken) if taken else old
