"""Sources of settings: a TOML file, the environment and flags; each overrides the previous."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from ...errors import ConfigProblem
from . import toml_text
from .spec import TableSpec
from .toml_text import Path as KeyPath

PREFIX: Final = "TENSORPOOL_"
FILE_VARIABLE: Final = "TENSORPOOL_CONFIG"
"""Environment variable with the path of the configuration file."""
_AT_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)$")


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of one value."""

    kind: Literal["default", "file", "environment", "flag"]
    name: str = ""
    line: int | None = None

    @property
    def source(self) -> str:
        """The name for error messages: the file, the variable or the flag."""
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
        """The origin of a key; the line is that of the innermost enclosing key that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return Origin("file", self.name, self.lines.get(path))


def read_document(path: Path) -> Document | ConfigProblem:
    """The parsed file, or the problem that prevents parsing."""
    name = str(path)
    try:
        text = path.read_text(encoding="utf-8")
        return Document(name, tomllib.loads(text), toml_text.line_numbers(text))
    except OSError as error:
        return ConfigProblem(f"cannot be read: {error.strerror or error}", source=name)
    except UnicodeDecodeError as error:
        return ConfigProblem(f"not UTF-8 at byte {error.start}", source=name)
    except tomllib.TOMLDecodeError as error:
        match = _AT_LINE.search(str(error))
        reason = f"not TOML: {_AT_LINE.sub('', str(error))}"
        return ConfigProblem(reason, source=name, line=int(match[1]) if match else None)
    except RecursionError:
        return ConfigProblem("nested too deeply", source=name)


@dataclass(frozen=True, slots=True)
class Override:
    """The text that the environment or a flag gives for a key."""

    text: str
    origin: Origin


def from_environment(role: str, environ: Mapping[str, str]) -> Iterator[tuple[KeyPath, Override]]:
    """The overrides of a role's variables: `TENSORPOOL_DRIVER__LIMITS__LEASES` is `driver.limits.leases`."""
    prefix = f"{PREFIX}{role.upper()}__"
    for name in sorted(environ):
        if name.startswith(prefix):
            path = tuple(part.lower() for part in name.removeprefix(prefix).split("__"))
            yield (role, *path), Override(environ[name], Origin("environment", name))


def variable(path: KeyPath) -> str:
    """The name of a key's environment variable."""
    return PREFIX + "__".join(str(part).upper() for part in path)


def dotted(path: KeyPath) -> str:
    """A key path as text: `driver.streams[1].nslots`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def is_leaf(table: TableSpec, path: KeyPath) -> bool:
    """Whether text can set the path: it names a single value or an array of tables."""
    spec = table.fields.get(str(path[0])) if path else None
    if spec is None:
        return False
    if spec.nested is not None and not spec.is_array:
        return is_leaf(spec.nested, path[1:])
    return len(path) == 1


def leaves(table: TableSpec, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every path for which `is_leaf` is true."""
    for key, spec in table.fields.items():
        if spec.nested is not None and not spec.is_array:
            yield from leaves(spec.nested, (*path, key))
        else:
            yield (*path, key)
