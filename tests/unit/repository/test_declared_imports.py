"""Whatever the package imports is declared in pyproject.toml: as a dependency, or as one of an extra."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "python"
# The modules that may import what an extra brings. Others must run without it.
EXTRA_MODULES = {
    "zarr": ("tensorpool/recording/export.py",),
    "mcap": ("tensorpool/recording/export.py",),
    "delta": (
        "tensorpool/pipeline/",
        "tensorpool/recording/table_store.py",
        "tensorpool/spark/table_reader.py",
    ),
    "cuda": ("tensorpool/cuda/", "tensorpool/doctor/host.py"),
    "otel": ("tensorpool/metrics/otel.py",),
    "console": ("tensorpool/console/", "tensorpool/cli/console.py"),
    "notebook": ("tensorpool/notebook.py", "tensorpool/preview.py"),
    "spark": (
        "tensorpool/spark/",
        "tensorpool/pipeline/",
        "tensorpool/demo/spark_job.py",
        "pyspark_tensorpool/",
    ),
}
# Packages whose distribution has another name and need not be installed here.
DISTRIBUTIONS = {"cuda": "cuda-bindings"}
# Used if the user has them, each behind a test for it: no extra could name the right build of torch.
IF_PRESENT = {"torch", "ml_dtypes", "fsspec", "pandas"}


@dataclass(frozen=True)
class Import:
    """One import of a package that is not of the standard library."""

    module: str
    package: str
    line: int
    is_guarded: bool
    """Whether an ImportError is caught around it."""

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.package}"


def imports(root: Path) -> Iterator[Import]:
    """The imports of all modules below `root` that run; those for type checkers alone do not."""
    for path in sorted(root.rglob("*.py")):
        yield from _imports(
            ast.parse(path.read_text("utf-8")), path.relative_to(root).as_posix(), guarded=False
        )


def _imports(node: ast.AST, module: str, *, guarded: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for other in child.orelse:
                yield from _imports(other, module, guarded=guarded)
            continue
        names: list[str] = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom) and child.level == 0 and child.module:
            names = [child.module]
        for name in names:
            package = name.partition(".")[0]
            if package not in sys.stdlib_module_names and not (SOURCE / package).is_dir():
                yield Import(module, package, getattr(child, "lineno", 0), guarded)
        catches = isinstance(child, ast.Try) and any(
            handler.type is not None and "ImportError" in ast.dump(handler.type) for handler in child.handlers
        )
        yield from _imports(child, module, guarded=guarded or catches)


@cache
def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def declared_extras() -> dict[str, set[str]]:
    """The distributions of each extra."""
    extras = _project()["optional-dependencies"]
    return {extra: {_name(requirement) for requirement in listed} for extra, listed in extras.items()}


def _name(requirement: str) -> str:
    return _normal(re.split(r"[\[<>=!~; ]", requirement)[0])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


_installed = cache(packages_distributions)


def _distributions(package: str) -> set[str]:
    return {_normal(name) for name in _installed().get(package, [DISTRIBUTIONS.get(package, package)])}


def fault(found: Import) -> str | None:
    """Why the import is not covered by a declaration; None if it is."""
    distributions = _distributions(found.package)
    if distributions & {_name(requirement) for requirement in _project()["dependencies"]}:
        return None
    for extra, names in declared_extras().items():
        if distributions & names and found.module.startswith(EXTRA_MODULES[extra]):
            return None
    if found.package in IF_PRESENT:
        return None if found.is_guarded else f"{found}, which may be missing, without catching ImportError"
    return f"{found}, which pyproject.toml does not declare for it"


@cache
def package_imports() -> list[Import]:
    """The imports of the package."""
    return list(imports(SOURCE))


def test_every_import_is_declared() -> None:
    found = package_imports()
    assert {"numpy", "click", "pyspark", "torch"} <= {each.package for each in found}
    assert [each_fault for each in found if (each_fault := fault(each))] == []


def test_every_dependency_is_imported() -> None:
    imported = {name for each in package_imports() for name in _distributions(each.package)}
    # Spark itself asks for pandas; the transport of OpenTelemetry is found by name.
    used_by_others = {"pandas"}
    declared = {_name(requirement) for requirement in _project()["dependencies"]}
    declared |= set().union(*declared_extras().values())
    assert declared - imported - used_by_others == set()


@pytest.mark.parametrize(
    ("module", "program", "expected"),
    [
        ("tensorpool/a.py", "import typing_extensions", "does not declare"),
        ("tensorpool/a.py", "from zarr.core import x", "does not declare"),
        ("tensorpool/recording/export.py", "def f():\n    import zarr", None),
        ("tensorpool/a.py", "import torch", "without catching"),
        ("tensorpool/a.py", "try:\n    import torch\nexcept ImportError:\n    pass", None),
        ("tensorpool/a.py", "import numpy.typing", None),
    ],
)
def test_undeclared_import_is_found(module: str, program: str, expected: str | None, tmp_path: Path) -> None:
    path = tmp_path / module
    path.parent.mkdir(parents=True)
    path.write_text(program)
    (found,) = imports(tmp_path)
    reason = fault(found)
    assert reason is None if expected is None else expected in str(reason)


def test_imports_for_type_checkers_need_no_declaration(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import _typeshed\n"
    )
    assert list(imports(tmp_path)) == []
