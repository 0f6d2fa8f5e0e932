"""The reference page of all settings, from the code."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import tensorpool
from tensorpool.runtime.config.sources import dotted, variable
from tensorpool.runtime.config.spec import ROLES, FieldSpec, TableSpec, spec_of
from tensorpool.runtime.config.toml_text import Path as KeyPath

_OPENING: Final = """\
# Configuration

Every setting of every role. This page is made from the code by
`python -m tools.reference`; a test keeps it up to date.

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
    """Imports `config.py` of every package of tensorpool, which registers its settings."""
    root = Path(tensorpool.__path__[0])
    # The settings of a limiter are in the module of the limiter.
    for name in ("tensorpool.runtime.role", "tensorpool.limiter"):
        importlib.import_module(name)
    for package in pkgutil.iter_modules([str(root)]):
        name = f"tensorpool.{package.name}"
        if package.ispkg and (root / package.name / "config.py").is_file() and find_spec(f"{name}.config"):
            importlib.import_module(f"{name}.config")


def render() -> str:
    """The text of the page."""
    import_roles()
    parts = [_OPENING]
    for role, cls in sorted(ROLES.items()):
        # Other programs may register roles too; these do not belong on this page.
        if cls.__module__.startswith("tensorpool."):
            parts += _table(spec_of(cls), (role,), is_array=False)
    return "\n".join(parts).rstrip() + "\n"


def _table(table: TableSpec, path: KeyPath, *, is_array: bool) -> Iterator[str]:
    name = dotted(path)
    yield f"{'#' * (len(path) + 1)} `{f'[[{name}]]' if is_array else f'[{name}]'}`\n\n{table.doc}\n"
    yield "| key | kind | default | |\n|---|---|---|---|"
    for field in table.fields.values():
        remarks = _remarks(field, (*path, field.key))
        yield f"| `{field.key}` | {_kind(field)} | {_default(field)} | {remarks} |"
    yield ""
    for field in table.fields.values():
        if field.nested is not None:
            yield from _table(field.nested, (*path, field.key), is_array=field.is_array)


def _kind(field: FieldSpec) -> str:
    if field.kind is None:
        return "array of tables" if field.is_array else "table"
    if field.kind.choices:
        shown = ", ".join(f"`{choice}`" for choice in field.kind.choices)
        return f"list of {shown}" if field.kind.is_list else shown
    return field.kind.name


def _default(field: FieldSpec) -> str:
    if field.is_required:
        return "*required*"
    if field.kind is None or field.default in (None, ()) or field.is_secret:
        return "none" if field.is_array or field.kind is not None else ""
    return f"`{field.kind.literal(field.default)}`"


def _remarks(field: FieldSpec, path: KeyPath) -> str:
    remarks = [field.doc]
    if field.kind is not None:
        bounds = {"at least": field.minimum, "at most": field.maximum}
        texts = [f"{name} {field.bound(limit)}" for name, limit in bounds.items() if limit is not None]
        if texts:
            remarks.append(f"{', '.join(texts).capitalize()}.")
    if field.live:
        remarks.append("*Live.*")
    if field.flag:
        remarks.append(f"Flag `{field.flag}`.")
    if field.nested is None or field.is_array:
        remarks.append(f"`{variable(path)}`" if len(path) == 2 else "")
    return " ".join(part for part in remarks if part).replace("|", "\\|")
