"""Settings as classes: frozen dataclasses whose fields carry what the configuration needs to know.

@settings("recorder")
class RecorderSettings:
    '''Writes streams to disk.'''

    out: Path = setting("Where recordings go.", flag="--out")
    rotate_bytes: SizeBytes = setting("Largest segment.", default=parse_size("1GiB"), live=True)
    streams: tuple[StreamSettings, ...] = setting("What to record.", default=())

The key in TOML is the attribute's name; that of a time or a size loses its unit (`rotate_bytes` is
written `rotate = "1GiB"`), since the value says it.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, TypeVar, dataclass_transform, get_args, get_origin

from .kinds import Kind, kind_of

T = TypeVar("T")
_META = "tensorpool.setting"
_UNIT_SUFFIXES = {"duration": "_ns", "size": "_bytes"}

Check = Callable[[Any], "str | None"]
"""Gives the reason why a value cannot be used, or None."""


@dataclass(frozen=True, slots=True)
class _Meta:
    doc: str
    live: bool
    flag: str | None
    minimum: float | None
    maximum: float | None
    check: Check | None


def setting(
    doc: str,
    *,
    default: Any = MISSING,
    live: bool = False,
    flag: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    check: Check | None = None,
) -> Any:
    """One setting. Without a default it is required.

    `live`: may change on SIGHUP. `flag`: the command-line option that sets it too. `minimum` and
    `maximum` include themselves. `check` sees the value last.
    """
    meta = _Meta(doc, live, flag, minimum, maximum, check)
    return field(default=default, metadata={_META: meta})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
def table(cls: type[T]) -> type[T]:
    """A class of settings that other settings hold: a nested table, or one of an array of tables.

    Its method `check(self)`, where it has one, yields (key, reason) for values that do not fit together.
    """
    return dataclass(frozen=True, kw_only=True)(cls)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
def settings(role: str) -> Callable[[type[T]], type[T]]:
    """The settings of a role: the table `[role]`. Its name is reserved from then on."""

    def make(cls: type[T]) -> type[T]:
        made = table(cls)
        ROLES[role] = made
        return made

    return make


ROLES: dict[str, type[Any]] = {}
"""The settings class of each role whose code has been imported."""

RESERVED = frozenset(
    {
        "aeron",
        "bridge",
        "context",
        "discovery",
        "driver",
        "pipeline",
        "recorder",
        "registry",
        "replay",
        "service",
        "shm",
        "supervisor",
        "metrics",
        "top",
    }
)
"""Tables of one file for all roles: a role leaves alone those of the others, whether or not it knows them."""


def role_of(cls: type[Any]) -> str:
    for role, one in ROLES.items():
        if one is cls:
            return role
    raise TypeError(f"{cls.__name__} is not the settings of a role; decorate it with @settings(name)")


@dataclass(frozen=True)
class FieldSpec:
    """All that is known of one key."""

    attribute: str
    key: str
    doc: str
    live: bool
    flag: str | None
    minimum: float | None
    maximum: float | None
    check: Check | None
    default: Any
    kind: Kind | None
    """None for tables."""
    nested: TableSpec | None = None
    is_array: bool = False

    @property
    def is_required(self) -> bool:
        return self.default is MISSING and (self.nested is None or self.is_array)

    @property
    def is_secret(self) -> bool:
        """Whether what stands here is, or holds, something that nobody is to see."""
        return (
            self.kind.is_secret
            if self.kind is not None
            else self.nested is not None and self.nested.has_secrets
        )

    def why_not(self, value: Any) -> str | None:
        """The reason why a value of the right kind is out of bounds."""
        if self.kind is None:
            return None
        for one in value if self.kind.is_list and value is not None else (value,):
            if one is None:
                continue
            if self.minimum is not None and one < self.minimum:
                return f"at least {self.bound(self.minimum)}"
            if self.maximum is not None and one > self.maximum:
                return f"at most {self.bound(self.maximum)}"
        return self.check(value) if self.check is not None and value is not None else None

    def bound(self, limit: float) -> str:
        """A limit as it would be written."""
        assert self.kind is not None, "tables have no limits"
        return self.kind.literal([limit] if self.kind.is_list else limit).strip("[]")


@dataclass(frozen=True)
class TableSpec:
    """All that is known of one table."""

    cls: type[Any]
    doc: str
    fields: Mapping[str, FieldSpec]

    @property
    def has_secrets(self) -> bool:
        return any(one.is_secret for one in self.fields.values())


def spec_of(cls: type[Any]) -> TableSpec:
    """Reads a settings class. Raises TypeError for one that is not well made."""
    if cls not in _SPECS:
        _SPECS[cls] = _table_spec(cls)
    return _SPECS[cls]


_SPECS: dict[type[Any], TableSpec] = {}


def _table_spec(cls: type[Any]) -> TableSpec:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields: dict[str, FieldSpec] = {}
    for one in dataclasses.fields(cls):
        made = _field_spec(one, hints[one.name])
        if made.key in fields:
            raise TypeError(f"{cls.__name__}: two attributes for the key {made.key!r}")
        fields[made.key] = made
    return TableSpec(cls, (cls.__doc__ or "").strip(), fields)


def _field_spec(one: dataclasses.Field[Any], hint: Any) -> FieldSpec:
    meta = one.metadata.get(_META)
    if meta is None:
        raise TypeError(f"{one.name}: declare it with setting(...), so that it has a sentence about itself")
    nested, is_array = _nested(hint)
    kind = None if nested else kind_of(hint)
    if kind is not None and kind.is_optional and one.default is not None:
        raise TypeError(f"{one.name}: TOML has no null, so what may be None has to be None by default")
    return FieldSpec(
        attribute=one.name,
        key=_key(one.name, kind),
        doc=meta.doc,
        live=meta.live,
        flag=meta.flag,
        minimum=meta.minimum,
        maximum=meta.maximum,
        check=meta.check,
        default=one.default,
        kind=kind,
        nested=nested,
        is_array=is_array,
    )


def _nested(hint: Any) -> tuple[TableSpec | None, bool]:
    arguments = get_args(hint)
    if get_origin(hint) is tuple and arguments and _holds_settings(arguments[0]):
        return spec_of(arguments[0]), True
    return (spec_of(hint), False) if _holds_settings(hint) else (None, False)


def _holds_settings(hint: Any) -> bool:
    if not isinstance(hint, type) or not dataclasses.is_dataclass(hint):
        return False
    return any(_META in one.metadata for one in dataclasses.fields(hint))


def _key(name: str, kind: Kind | None) -> str:
    suffix = _UNIT_SUFFIXES.get(kind.name.removeprefix("list of "), "") if kind else ""
    return name.removesuffix(suffix)


def known_tables(loaded: Iterable[str]) -> set[str]:
    return {*ROLES, *RESERVED, *loaded}
