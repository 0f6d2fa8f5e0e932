"""What the kernel lets this process have: locked memory, open files, mappings."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

from .check import Check, fail, megabytes, ok, warn
from .memory import ONE_STREAM_BYTES

_FEW_FILES: Final = 256
_SOME_FILES: Final = 1024
# Linux' own default; the media driver and every stream have several mappings each.
_USUAL_MAPPINGS: Final = 65_530


def check_memlock(limit: int, *, wanted: bool) -> Check:
    """`wanted`: the configuration has memory locked."""
    name = "locked memory"
    if limit == resource.RLIM_INFINITY:
        return ok(name, "unlimited")
    found = f"{megabytes(limit)} a process"
    if not wanted:
        return ok(name, f"{found}; the configuration locks none")
    remedy = "LimitMEMLOCK=infinity in the systemd unit, or memlock in /etc/security/limits.conf"
    if limit < ONE_STREAM_BYTES:
        return fail(name, found, "[driver] mlock is set, and not even one stream may be locked.", remedy)
    return warn(
        name, found, f"[driver] mlock is set: room for {limit // ONE_STREAM_BYTES} default streams.", remedy
    )


def check_files(soft: int, hard: int) -> Check:
    name = "open files"
    if soft == resource.RLIM_INFINITY:
        return ok(name, "unlimited")
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    found = f"{soft} a process, at most {most}"
    more = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    remedy = f"ulimit -n {more}, or LimitNOFILE= in the systemd unit"
    if soft < _FEW_FILES:
        return fail(name, found, "A handful of streams uses them up.", remedy)
    if soft < _SOME_FILES:
        return warn(name, found, "A driver of many streams uses them up.", remedy)
    return ok(name, found)


def check_mappings(most: int | None) -> Check:
    name = "memory mappings"
    if most is None:
        return ok(name, "unknown")
    if most < _USUAL_MAPPINGS:
        return warn(
            name, f"{most} a process", "A process that reads many streams uses them up.",
            f"sysctl vm.max_map_count={_USUAL_MAPPINGS}",
        )  # fmt: skip
    return ok(name, f"{most} a process")


def limit_checks(*, wants_mlock: bool) -> list[Check]:
    """All of them, for this process."""
    try:
        most = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        most = None
    return [
        check_memlock(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], wanted=wants_mlock),
        check_files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        check_mappings(most),
    ]
