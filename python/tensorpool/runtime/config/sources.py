"""Where values come from: a file, the environment, flags; later ones override."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...errors import ConfigProblem
from . import toml
from .spec import TableSpec
from .toml import Path as KeyPath

PREFIX = "TENSORPOOL_"
FILE_VARIABLE = "TENSORPOOL_CONFIG"
"""Environment variable with the path of the configuration file."""
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from."""

    kind: Literal["default", "file", "environment", "flag"]
    name: str = ""
    line: int | None = None

    @property
    def source(self) -> str:
        """For an error: the file, the variable, the flag."""
        return self.name if self.kind == "file" else f"{self.kind} {self.name}".rstrip()

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


DEFAULT = Origin("default")


@dataclass(frozen=True)
class Document:
    """A file's tables, and the line of every key."""

    name: str = ""
    tables: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def origin(self, path: KeyPath) -> Origin:
        """Of a key, or of the nearest thing around it that has a line."""
        while path and path not in self.lines:
            path = path[:-1]
        return Origin("file", self.name, self.lines.get(path))


def read_document(path: Path) -> Document | ConfigProblem:
    """The file, or the one reason why it cannot be read."""
    name = str(path)
    try:
        text = path.read_text(encoding="utf-8")
        return Document(name, tomllib.loads(text), toml.line_numbers(text))
    except OSError as error:
        return ConfigProblem(f"cannot be read: {error.strerror or error}", source=name)
    except UnicodeDecodeError as error:
        return ConfigProblem(f"not UTF-8 at byte {error.start}", source=name)
    except tomllib.TOMLDecodeError as error:
        at = _AT_LINE.search(str(error))
        reason = f"not TOML: {_AT_LINE.sub('', str(error))}"
        return ConfigProblem(reason, source=name, line=int(at[1]) if at else None)
    except RecursionError:
        return ConfigProblem("nested too deeply", source=name)


@dataclass(frozen=True, slots=True)
class Override:
    """Text for a key, from the environment or a flag."""

    text: str
    origin: Origin


def from_environment(role: str, environ: Mapping[str, str]) -> Iterator[tuple[KeyPath, Override]]:
    """Every variable of a role: `TENSORPOOL_DRIVER__LIMITS__LEASES` is `driver.limits.leases`."""
    prefix = f"{PREFIX}{role.upper()}__"
    for name in sorted(environ):
        if name.startswith(prefix):
            path = tuple(part.lower() for part in name.removeprefix(prefix).split("__"))
            yield (role, *path), Override(environ[name], Origin("environment", name))


def variable(path: KeyPath) -> str:
    """The name of a key's environment variable."""
    return PREFIX + "__".join(str(part).upper() for part in path)


def dotted(path: KeyPath) -> str:
    """`driver.streams[1].nslots`."""
    shown = ""
    for part in path:
        shown += f"[{part}]" if isinstance(part, int) else f".{part}" if shown else part
    return shown


def lookup(table: TableSpec, path: KeyPath) -> bool:
    """Whether a path names something that text can be given for: a leaf, or an array of tables."""
    found = table.fields.get(str(path[0])) if path else None
    if found is None:
        return False
    if found.nested is not None and not found.is_array:
        return lookup(found.nested, path[1:])
    return len(path) == 1


def leaves(table: TableSpec, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every path that `lookup` accepts."""
    for key, one in table.fields.items():
        if one.nested is not None and not one.is_array:
            yield from leaves(one.nested, (*path, key))
        else:
            yield (*path, key)
