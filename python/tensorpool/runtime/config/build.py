"""From tables and overrides to settings, with every problem on the way collected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from typing import Any

from ...errors import ConfigError, ConfigProblem
from . import toml_text
from .kinds import inline
from .sources import DEFAULT, Document, Origin, Override, dotted, leaves, lookup, variable
from .spec import FieldSpec, TableSpec
from .toml_text import Path as KeyPath

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
        shown = toml_text.literal(value)
    except UnicodeEncodeError:
        shown = ascii(value)
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
