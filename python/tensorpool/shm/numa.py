"""NUMA nodes: which the machine has, and where the pages of new regions are.

The kernel places a page by the memory policy of the thread that allocates it: here the thread that creates a
region.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .. import _native

_LOG = logging.getLogger(__name__)
_ONLINE: Final = Path("/sys/devices/system/node/online")


def numa_nodes(online: Path = _ONLINE) -> frozenset[int]:
    """The nodes of this machine; node 0 alone where the kernel knows none."""
    try:
        ranges = [part.partition("-") for part in online.read_text("ascii").strip().split(",")]
        nodes = {node for first, _, last in ranges for node in range(int(first), int(last or first) + 1)}
    except (OSError, ValueError):
        return frozenset({0})
    return frozenset(nodes or {0})


@contextmanager
def memory_on(node: int | None, nodes: frozenset[int]) -> Iterator[None]:
    """Within the block this thread allocates memory on `node` only; None: by the policy of the process.

    Memory is placed by that policy too where a container does not permit a choice: `node_of` returns the
    result.
    """
    if node is None or nodes == {node}:
        yield
        return
    try:
        _native.bind_memory(node)
    except OSError as error:
        _LOG.warning("memory cannot be bound to NUMA node %d: %s", node, error.strerror)
        yield
        return
    try:
        yield
    finally:
        _native.bind_memory(None)


def node_of(paths: Sequence[Path], nodes: frozenset[int]) -> int | None:
    """The node of all pages of these files; None if there are several, or the kernel does not report it."""
    if len(nodes) == 1:
        return next(iter(nodes))
    try:
        found = {_native.memory_node(path) for path in paths}
    except OSError:
        return None
    return found.pop() if len(found) == 1 else None
