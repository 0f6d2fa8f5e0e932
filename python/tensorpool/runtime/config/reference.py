"""Writes the reference page of all settings from the code.

python -m tensorpool.runtime.config.reference > docs/reference/configuration.md
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from .sources import dotted, variable
from .spec import ROLES, FieldSpec, TableSpec, spec_of
from .toml import Path as KeyPath

_OPENING = """\
# Configuration

Every setting of every role. This page is made from the code by
`python -m tensorpool.runtime.config.reference`; a test keeps it up to date.

A configuration is one TOML file with a table for each role, given by `--config` or by the environment
variable `TENSORPOOL_CONFIG`. Everything has a default unless the table says *required*.

| what | overrides | written as |
|---|---|---|
| the file | the defaults | `[log]` and below it `level = "debug"` |
| the environment | the file | `TENSORPOOL_LOG__LEVEL=debug`; two underscores between the parts |
| flags | the environment | `--log-level debug`, or for any setting `--set log.level=debug` |

In the environment and in flags a list is written with commas (`a,b`) or as in TOML (`["a", "b"]`), an
array of tables as in TOML (`[{stream_id = 1}]`); text needs no quotes.

- `--check` reads the configuration and says everything that is wrong with it: the key, the value, the
  line, and the nearest that would be right. An unknown table or key is wrong too. A role does not look
  into the tables of other roles.
- `--print-config` prints what is in force as TOML, with the origin of each value. Secrets are left out.
- Settings marked *live* are taken over when the file is changed and the process gets SIGHUP. The log names
  changed settings that need a restart. A file with mistakes changes nothing.

| kind | written as |
|---|---|
| duration | `"250ms"`, `"1.5s"`; units ns, us, ms, s, min, h, d |
| size | `"4MiB"`; units B, KiB, MiB, GiB; a plain number is bytes |
| range of ids | `"20000-29999"`, both included |
| file mode | `"0640"` |
| secret | text that is never printed or logged |
"""


def import_roles() -> None:
    """Imports `config.py` of every role of the package, wherever it is: that registers its settings."""
    root = Path(__file__).parents[2]
    importlib.import_module("tensorpool.runtime.role")
    for found in pkgutil.iter_modules([str(root)]):
        name = f"tensorpool.{found.name}"
        if found.ispkg and (root / found.name / "config.py").is_file() and find_spec(f"{name}.config"):
            importlib.import_module(f"{name}.config")


def render() -> str:
    import_roles()
    parts = [_OPENING]
    for role, cls in sorted(ROLES.items()):
        # Roles of programs that are built upon the package have pages of their own.
        if cls.__module__.startswith("tensorpool."):
            parts += _table(spec_of(cls), (role,), is_array=False)
    return "\n".join(parts).rstrip() + "\n"


def _table(table: TableSpec, path: KeyPath, *, is_array: bool) -> Iterator[str]:
    name = dotted(path)
    yield f"{'#' * (len(path) + 1)} `{f'[[{name}]]' if is_array else f'[{name}]'}`\n\n{table.doc}\n"
    yield "| key | kind | default | |\n|---|---|---|---|"
    for one in table.fields.values():
        yield f"| `{one.key}` | {_kind(one)} | {_default(one)} | {_remarks(one, (*path, one.key))} |"
    yield ""
    for one in table.fields.values():
        if one.nested is not None:
            yield from _table(one.nested, (*path, one.key), is_array=one.is_array)


def _kind(one: FieldSpec) -> str:
    if one.kind is None:
        return "array of tables" if one.is_array else "table"
    if one.kind.choices:
        shown = ", ".join(f"`{choice}`" for choice in one.kind.choices)
        return f"list of {shown}" if one.kind.is_list else shown
    return one.kind.name


def _default(one: FieldSpec) -> str:
    if one.is_required:
        return "*required*"
    if one.kind is None or one.default in (None, ()) or one.is_secret:
        return "none" if one.is_array or one.kind is not None else ""
    return f"`{one.kind.literal(one.default)}`"


def _remarks(one: FieldSpec, path: KeyPath) -> str:
    said = [one.doc]
    if one.kind is not None:
        bounds = {"at least": one.minimum, "at most": one.maximum}
        shown = [f"{word} {one.bound(limit)}" for word, limit in bounds.items() if limit is not None]
        if shown:
            said.append(f"{', '.join(shown).capitalize()}.")
    if one.live:
        said.append("*Live.*")
    if one.flag:
        said.append(f"Flag `{one.flag}`.")
    if one.nested is None or one.is_array:
        said.append(f"`{variable(path)}`" if len(path) == 2 else "")
    return " ".join(part for part in said if part).replace("|", "\\|")


if __name__ == "__main__":
    print(render(), end="")
