"""A configuration: the settings of a role and of what it runs on, and where each value came from."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from ...errors import ConfigProblem, InvalidConfig
from .build import Builder, nearest
from .render import render_tables
from .sources import DEFAULT, Document, Origin, Override, dotted, from_environment, read_document
from .spec import ROLES, TableSpec, known_tables, role_of, spec_of
from .toml_text import Path as KeyPath

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
