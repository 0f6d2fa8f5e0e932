"""Settings as classes: frozen dataclasses whose fields have a description, bounds and a flag.

@settings("recorder")
class RecorderSettings:
    '''Writes streams to disk.'''

    out: Path = setting("Directory of the recordings.", flag="--out")
    rotate_bytes: SizeBytes = setting("Largest segment.", default=parse_size("1GiB"), live=True)
    streams: tuple[StreamSettings, ...] = setting("Streams to record.", default=())

The key in TOML is the attribute's name. The key of a duration or a size has no unit (`rotate_bytes` is
written `rotate = "1GiB"`), because the value has it. Pure.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Final, TypeVar, dataclass_transform, get_args, get_origin

from .kinds import Kind, kind_of

T = TypeVar("T")
_META: Final = "tensorpool.setting"
_UNIT_SUFFIXES: Final = {"duration": "_ns", "size": "_bytes"}

Check = Callable[[Any], "str | None"]
"""Returns why a value is invalid; None for a valid value."""


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
    """Declares one setting. Without a default it is required.

    `live`: a reload on SIGHUP applies a new value. `flag`: the command-line option that also sets it.
    `minimum` and `maximum` are inclusive. `check` runs last.
    """
    meta = _Meta(doc, live, flag, minimum, maximum, check)
    return field(default=default, metadata={_META: meta})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
def table(cls: type[T]) -> type[T]:
    """Declares a nested table, or the entries of an array of tables.

    An optional method `check(self)` yields (key, reason) for values that contradict each other.
    """
    return dataclass(frozen=True, kw_only=True)(cls)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
def settings(role: str) -> Callable[[type[T]], type[T]]:
    """Declares the settings of a role: the table `[role]`. Registers them in `ROLES`."""

    def decorate(cls: type[T]) -> type[T]:
        settings_class = table(cls)
        ROLES[role] = settings_class
        return settings_class

    return decorate


ROLES: dict[str, type[Any]] = {}
"""The settings class of each role whose module was imported."""

RESERVED = frozenset(
    {
        "aeron",
        "bridge",
        "context",
        "discovery",
        "driver",
        "limiter",
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
"""Tables that one file may have for all roles. A role ignores the tables of other roles, loaded or not."""


def role_of(cls: type[Any]) -> str:
    """The role of a settings class. Raises TypeError for a class that is not registered."""
    for role, settings_class in ROLES.items():
        if settings_class is cls:
            return role
    raise TypeError(f"{cls.__name__} is not the settings of a role; decorate it with @settings(name)")


@dataclass(frozen=True)
class FieldSpec:
    """The declaration of one key."""

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
        """Whether the configuration must have a value."""
        return self.default is MISSING and (self.nested is None or self.is_array)

    @property
    def is_secret(self) -> bool:
        """Whether the value is a secret, or contains one."""
        return (
            self.kind.is_secret
            if self.kind is not None
            else self.nested is not None and self.nested.has_secrets
        )

    def value_fault(self, value: Any) -> str | None:
        """Why a value of the right kind is invalid; None for a valid value."""
        if self.kind is None:
            return None
        for item in value if self.kind.is_list and value is not None else (value,):
            if item is None:
                continue
            if self.minimum is not None and item < self.minimum:
                return f"at least {self.bound(self.minimum)}"
            if self.maximum is not None and item > self.maximum:
                return f"at most {self.bound(self.maximum)}"
        return self.check(value) if self.check is not None and value is not None else None

    def bound(self, limit: float) -> str:
        """A minimum or maximum as TOML."""
        assert self.kind is not None, "tables have no limits"
        return self.kind.literal([limit] if self.kind.is_list else limit).strip("[]")


@dataclass(frozen=True)
class TableSpec:
    """The declaration of one table."""

    cls: type[Any]
    doc: str
    fields: Mapping[str, FieldSpec]

    @property
    def has_secrets(self) -> bool:
        """Whether a key of the table is, or contains, a secret."""
        return any(spec.is_secret for spec in self.fields.values())


def spec_of(cls: type[Any]) -> TableSpec:
    """The table that a settings class declares. Raises TypeError for an invalid declaration."""
    if cls not in _SPECS:
        _SPECS[cls] = _table_spec(cls)
    return _SPECS[cls]


_SPECS: dict[type[Any], TableSpec] = {}


def _table_spec(cls: type[Any]) -> TableSpec:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields: dict[str, FieldSpec] = {}
    for attribute in dataclasses.fields(cls):
        spec = _field_spec(attribute, hints[attribute.name])
        if spec.key in fields:
            raise TypeError(f"{cls.__name__}: two attributes have the key {spec.key!r}; rename one")
        fields[spec.key] = spec
    return TableSpec(cls, (cls.__doc__ or "").strip(), fields)


def _field_spec(attribute: dataclasses.Field[Any], hint: Any) -> FieldSpec:
    meta = attribute.metadata.get(_META)
    if meta is None:
        raise TypeError(f"{attribute.name}: no description; declare it with setting(...)")
    nested, is_array = _nested(hint)
    kind = None if nested else kind_of(hint)
    if kind is not None and kind.is_optional and attribute.default is not None:
        raise TypeError(f"{attribute.name}: TOML has no null; an optional setting needs the default None")
    return FieldSpec(
        attribute=attribute.name,
        key=_key(attribute.name, kind),
        doc=meta.doc,
        live=meta.live,
        flag=meta.flag,
        minimum=meta.minimum,
        maximum=meta.maximum,
        check=meta.check,
        default=attribute.default,
        kind=kind,
        nested=nested,
        is_array=is_array,
    )


def _nested(hint: Any) -> tuple[TableSpec | None, bool]:
    arguments = get_args(hint)
    if get_origin(hint) is tuple and arguments and _is_table(arguments[0]):
        return spec_of(arguments[0]), True
    return (spec_of(hint), False) if _is_table(hint) else (None, False)


def _is_table(hint: Any) -> bool:
    if not isinstance(hint, type) or not dataclasses.is_dataclass(hint):
        return False
    return any(_META in attribute.metadata for attribute in dataclasses.fields(hint))


def _key(name: str, kind: Kind | None) -> str:
    suffix = _UNIT_SUFFIXES.get(kind.name.removeprefix("list of "), "") if kind else ""
    return name.removesuffix(suffix)


def known_tables(loaded: Iterable[str]) -> set[str]:
    """Names of tables that are not an error: registered, reserved or loaded."""
    return {*ROLES, *RESERVED, *loaded}
