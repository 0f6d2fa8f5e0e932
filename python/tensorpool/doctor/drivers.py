"""Aeron's media driver: does one run, whose is it, and does it put readers to rest in time.

The SHM driver: does one hold the namespace, and on which media driver.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from ..driver import Holder, other_driver, qualified_namespace, read_holder
from ..errors import MediaDriverError
from ..runtime.counters import AeronCounterValue, read_aeron_counters
from ..shm.epoch_files import is_alive
from ..shm.inspect import user_of
from ..transport import embed_lock_path
from ..transport.media_driver import MarkFile, measure_timer_interval, read_mark_file
from .checks import Check, fail, ok, warn

# A driver that we embed looks at its timers each 2 ms, Aeron's default is a second.
_SLOW_TIMER_S: Final = 0.05
_SILENT_S: Final = 5.0
_ERRORS_LABEL: Final = "Errors: "
_NAME: Final = "media driver"


@dataclass(frozen=True, slots=True)
class MediaDriverFacts:
    """What can be known of a media driver from outside."""

    aeron_dir: str
    mark: MarkFile | None
    is_alive: bool = False
    """Its process is there, and gave a sign of life lately."""
    is_stopped: bool = False
    """Its process is there, and gives no sign of life."""
    is_ours: bool = False
    """It is embedded in a process of this package."""
    timer_interval_s: float | None = None
    version: str = ""
    errors: int = 0
    trouble: str = ""


def probe_media_driver(aeron_dir: str) -> MediaDriverFacts:
    """Takes up to two and a half seconds where a driver has a slow timer."""
    try:
        mark = read_mark_file(aeron_dir)
    except MediaDriverError as error:
        return MediaDriverFacts(aeron_dir, None, trouble=str(error))
    if mark is None:
        return MediaDriverFacts(aeron_dir, None)
    alive = mark.heartbeat_ms > 0 and mark.age_s(time.time_ns()) < _SILENT_S and is_alive(mark.pid)
    if not alive:
        return MediaDriverFacts(aeron_dir, mark, is_stopped=mark.heartbeat_ms > 0 and mark.is_in_use())
    readings: list[AeronCounterValue] = []
    with suppress(MediaDriverError):
        readings = read_aeron_counters(aeron_dir)
    errors = next((one for one in readings if one.label.startswith(_ERRORS_LABEL)), None)
    return MediaDriverFacts(
        aeron_dir,
        mark,
        is_alive=True,
        is_ours=_is_ours(aeron_dir, mark.pid),
        timer_interval_s=measure_timer_interval(mark.path),
        version="" if errors is None else errors.label.partition("version=")[2].partition(" ")[0],
        errors=0 if errors is None else errors.value,
    )


def _is_ours(aeron_dir: str, pid: int) -> bool:
    try:
        return embed_lock_path(aeron_dir).read_text() == f"process {pid}"
    except OSError:
        return False


def check_media_driver(facts: MediaDriverFacts) -> list[Check]:
    mark = facts.mark
    if facts.trouble:
        return [
            fail(
                _NAME,
                facts.trouble,
                "This user cannot attach to it.",
                "Run as its user, let it have a directory mode for a group, or set AERON_DIR to your own.",
            )
        ]
    if mark is None:
        return [ok(_NAME, f"none in {facts.aeron_dir}; tensorpool.open() embeds one")]
    if facts.is_stopped:
        return [
            fail(
                _NAME,
                f"process {mark.pid} in {facts.aeron_dir} gave no sign of life for {_SILENT_S:.0f} s or more",
                "It is stopped, or has no time to run: nobody can attach, and frames do not move.",
                f"kill -CONT {mark.pid} lets it go on if it was stopped; else end it and start it again.",
            )
        ]
    if not facts.is_alive:
        return [
            warn(
                _NAME,
                f"what process {mark.pid} left in {facts.aeron_dir}; it no longer runs",
                "Nobody can attach to it.",
                "Nothing: the next media driver that starts there removes it.",
            )
        ]
    since = datetime.fromtimestamp(mark.started_ms / 1e3).strftime("%Y-%m-%d %H:%M")
    kind = "embedded by tensorpool" if facts.is_ours else "of its own"
    version = f"Aeron {facts.version}, " if facts.version else ""
    found = (
        f"{facts.aeron_dir}: {version}process {mark.pid} of {user_of(mark.owner_uid)}, {kind}, since {since}"
    )
    checks = [_check_access(found, mark), _check_timers(facts)]
    if facts.errors:
        checks.append(
            warn(
                "media driver errors",
                f"{facts.errors} so far",
                "Something it was asked for did not work.",
                f"AeronStat and ErrorStat on {facts.aeron_dir} say what it was.",
            )
        )
    return checks


def _check_access(found: str, mark: MarkFile) -> Check:
    if mark.mode & 0o002:
        return warn(
            _NAME, f"{found}, mode {mark.mode:04o}", "Everybody on this machine may send and read.",
            f"chmod o-w {mark.path.parent}, or let tensorpool embed one: its directory is private.",
        )  # fmt: skip
    if not os.access(mark.path, os.R_OK | os.W_OK):
        return fail(_NAME, found, "This user cannot attach to it.", "Run as its user, or share it by group.")
    return ok(_NAME, found)


def _check_timers(facts: MediaDriverFacts) -> Check:
    name = "slow readers"
    interval = facts.timer_interval_s
    if interval is None:
        return warn(
            name, "the media driver's timer interval could not be measured",
            "With Aeron's default of 1 s a reader that stops holds its producer up for half a second.",
            "AERON_TIMER_INTERVAL=2ms for aeronmd, -Daeron.timer.interval=2ms for the Java driver.",
        )  # fmt: skip
    found = f"the media driver looks for them every {interval * 1e3:.0f} ms (measured)"
    if interval <= _SLOW_TIMER_S:
        return ok(name, found)
    return warn(
        name,
        found,
        "A reader that stops polling is put to rest only then: until it is, producers that publish fast drop "
        "frames for everybody.",
        "Start it with AERON_TIMER_INTERVAL=2ms (aeronmd) or -Daeron.timer.interval=2ms (Java), or let "
        "tensorpool embed one. The untethered timeouts are named on our channels and need no setting.",
    )


_SHM_NAME = "SHM driver"


def check_shm_driver(holder: Holder | None, *, place: str, aeron_dir: str) -> Check:
    if holder is None:
        return ok(_SHM_NAME, f"none holds namespace {place!r}; tensorpool.open() embeds one")
    found = str(holder)
    if holder.aeron_dir and Path(holder.aeron_dir).absolute() != Path(aeron_dir).absolute():
        return warn(
            _SHM_NAME,
            found,
            f"It is on another media driver than {aeron_dir}, so requests from here never reach it.",
            f"AERON_DIR={holder.aeron_dir}, or choose another [shm] namespace.",
        )
    return ok(_SHM_NAME, found)


def driver_checks(
    base: Path, namespace: str, instance_id: str, *, aeron_dir: str, control_stream_id: int
) -> list[Check]:
    """Looks at the lock, which is its user's own, and at the media driver's counters; takes nothing."""
    holder = read_holder(base, namespace, instance_id) or other_driver(aeron_dir, control_stream_id)
    return [check_shm_driver(holder, place=qualified_namespace(namespace, instance_id), aeron_dir=aeron_dir)]
