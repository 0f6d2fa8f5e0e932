"""The SHM driver: does one hold the namespace, and on which media driver."""

from __future__ import annotations

from pathlib import Path

from ..driver import Holder, other_driver, qualified_namespace, read_holder
from .check import Check, ok, warn

_NAME = "SHM driver"


def check_shm_driver(holder: Holder | None, *, place: str, aeron_dir: str) -> Check:
    if holder is None:
        return ok(_NAME, f"none holds namespace {place!r}; tensorpool.open() embeds one")
    found = str(holder)
    if holder.aeron_dir and Path(holder.aeron_dir).absolute() != Path(aeron_dir).absolute():
        return warn(
            _NAME,
            found,
            f"It is on another media driver than {aeron_dir}, so requests from here never reach it.",
            f"AERON_DIR={holder.aeron_dir}, or choose another [shm] namespace.",
        )
    return ok(_NAME, found)


def driver_checks(
    base: Path, namespace: str, instance_id: str, *, aeron_dir: str, control_stream_id: int
) -> list[Check]:
    """Looks at the lock, which is its user's own, and at the media driver's counters; takes nothing."""
    holder = read_holder(base, namespace, instance_id) or other_driver(aeron_dir, control_stream_id)
    return [check_shm_driver(holder, place=qualified_namespace(namespace, instance_id), aeron_dir=aeron_dir)]
