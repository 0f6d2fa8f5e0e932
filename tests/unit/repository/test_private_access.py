"""Packages use only public names of each other."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

import tensorpool

PACKAGE = Path(tensorpool.__file__).parent
# Methods of named tuples begin with an underscore, and are public.
NAMED_TUPLE_METHODS = {"_make", "_replace", "_asdict", "_fields"}
ALLOWED = {
    # Descriptors store their values in the service that has them; both classes are of one package.
    "service/declarations.py": {"_values", "_assign"},
    # The current stream of torch as a number, as its own compiler asks for it: the public call takes as long
    # as a copy of 200 KiB.
    "cuda/slots.py": {"_C", "_cuda_getCurrentRawStream"},
}
# `_native` belongs to all packages: its private members are hidden from users, not from them.
NATIVE_MODULES = {"_native"}
NATIVE_MEMBERS = {
    node.name
    for node in ast.walk(ast.parse((PACKAGE / "_native.pyi").read_text("utf-8")))
    if isinstance(node, ast.FunctionDef) and node.name.startswith("_") and not node.name.startswith("__")
}


def is_private(name: str) -> bool:
    if name.startswith("_repr_") and name.endswith("_"):
        return False  # IPython calls it
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE_METHODS


def defined_names(tree: ast.AST) -> set[str]:
    """Names that a module defines, imports, or sets on `self` and `cls`: its own private names."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # of `__slots__`
    return names


def is_own(value: ast.expr) -> bool:
    """Whether an expression is the object that the code belongs to."""
    if isinstance(value, ast.Name):
        return value.id in ("self", "cls")
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super"


def named_attribute(call: ast.Call) -> str | None:
    """The private attribute of another object that a call names: `getattr(other, "_x")`, also as a path."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function not in ("getattr", "setattr", "hasattr", "delattr", "attrgetter") or is_own(call.args[0]):
        return None
    for argument in call.args[:2]:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            name = argument.value.rpartition(".")[2]
            return name if is_private(name) else None
    return None


def is_context(value: ast.expr) -> bool:
    """Whether an expression is called a context, like `ctx` and `self._context`."""
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return name.lstrip("_") in ("ctx", "context")


def private_accesses(source: str, allowed: Container[str] = ()) -> Iterator[str]:
    """`line: expression` of each access to a private attribute that the module does not define.

    Also of private names that it imports, and of those that it gives to a function like `getattr`.

    A private attribute of a context counts even if the module has a private name that is the same.
    """
    tree = ast.parse(source)
    names = defined_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for imported in (alias.name for alias in node.names):
                if is_private(imported) and imported not in allowed and imported not in NATIVE_MODULES:
                    yield f"{node.lineno}: {node.module}.{imported}"
        if isinstance(node, ast.Call) and (name := named_attribute(node)) is not None and name not in allowed:
            yield f"{node.lineno}: {ast.unparse(node.func)}({name})"
        if not isinstance(node, ast.Attribute) or not is_private(node.attr) or is_own(node.value):
            continue
        if node.attr not in allowed and (node.attr not in names or is_context(node.value)):
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_modules_access_no_private_attribute_of_another_module() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{access}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for access in private_accesses(
            path.read_text("utf-8"), NATIVE_MEMBERS | ALLOWED.get(str(path.relative_to(PACKAGE)), set())
        )
    ]
    assert found == []


# The kernel of torch that takes a given time.
OUTSIDE_ALLOWED = {"benchmarks/gpu.py": {"_sleep"}}


@pytest.mark.parametrize("directory", ["benchmarks", "examples", "tools"])
def test_programs_access_no_private_attribute_of_the_package(directory: str) -> None:
    root = PACKAGE.parents[1]
    paths = [path.relative_to(root).as_posix() for path in sorted((root / directory).rglob("*.py"))]
    allowed = NATIVE_MEMBERS | {"_exit"}
    found = [
        f"{name}:{access}"
        for name in paths
        for access in private_accesses(
            (root / name).read_text("utf-8"), allowed | OUTSIDE_ALLOWED.get(name, set())
        )
    ]
    assert found == []


# Private names of the package that a test file uses: to cause a fault at a moment that no public call reaches
# (a kill between two writes, a full disk, a race), to lower a limit that would take long to reach, or to
# count what must not be created. The list only gets shorter.
TESTS = PACKAGE.parents[1] / "tests"
TEST_ACCESSES: dict[str, int] = {
    "e2e/test_recorder_page.py": 2,
    # The only kernel of torch whose duration can be chosen.
    "gpu/test_cuda.py": 2,
    "integration/bridge/test_epochs.py": 4,
    "integration/dataplane/test_waiting.py": 1,
    "integration/discovery/test_embedded.py": 1,
    "integration/faults/test_closing.py": 1,
    "integration/monitor/test_listener.py": 2,
    "integration/recorder/roles.py": 3,
    "integration/recorder/test_control.py": 10,
    "integration/recorder/test_messages.py": 4,
    "integration/service/test_record.py": 2,
    "integration/spark/test_compaction.py": 1,
    "unit/cli/test_record_line.py": 1,
    "unit/client/test_metadata.py": 1,
    "unit/demo/test_two_hosts.py": 1,
    "unit/discovery/test_index_updater.py": 1,
    "unit/driver/test_agent.py": 2,
    "unit/driver/test_storage.py": 1,
    "unit/monitor/test_ledger.py": 1,
    "unit/monitor/test_model.py": 2,
    "unit/recorder/test_message_filter.py": 2,
    "unit/recorder/test_sink.py": 3,
    "unit/recording/test_disk_full.py": 2,
    "unit/recording/test_durable.py": 3,
    "unit/recording/test_manifest.py": 5,
    "unit/recording/test_mmap_cache.py": 2,
    "unit/recording/test_properties.py": 8,
    "unit/recording/test_reading.py": 3,
    "unit/runtime/test_logs.py": 1,
    "unit/service/test_malformed_replies.py": 1,
    "unit/spark/test_live_rows.py": 3,
    "unit/spark/test_plan.py": 2,
    "unit/spark/test_sink.py": 2,
}


def test_tests_access_no_further_private_attribute() -> None:
    found = {}
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS).as_posix()
        if count := len(set(private_accesses(path.read_text("utf-8"), {"_exit", "_native"}))):
            found[name] = count
    more = {name: count for name, count in found.items() if count > TEST_ACCESSES.get(name, 0)}
    assert not more, "use public members, or add one to the package"
    fewer = {name: count for name, count in TEST_ACCESSES.items() if found.get(name, 0) < count}
    assert not fewer, "lower the number in TEST_ACCESSES"


@pytest.mark.parametrize(
    "line",
    [
        "from tensorpool.cli.replay import _run",
        "from . import _helpers",
        "getattr(other, '_x', None)",
        "monkeypatch.setattr(module, '_x', 1)",
        "monkeypatch.setattr('tensorpool.module._x', 1)",
    ],
)
def test_private_name_is_detected_without_an_attribute(line: str) -> None:
    assert len(list(private_accesses(line))) == 1


@pytest.mark.parametrize(
    "line",
    ["from .. import _native", "getattr(self, '_x')", "getattr(other, 'x')", "setattr(other, name, 1)"],
)
def test_own_and_public_names_are_allowed(line: str) -> None:
    assert list(private_accesses(line)) == []


def test_private_access_is_detected_in_another_module_only() -> None:
    source = """
class Agent:
    def __init__(self, context):
        self._context = context
        self._conductor = context._conductor
        self._parts = []

    def work(self, other):
        other._parts.clear()
        return other._state
"""
    assert set(private_accesses(source)) == {"5: context._conductor", "10: other._state"}
