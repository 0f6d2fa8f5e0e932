"""Checks of the two drivers: Aeron's media driver and the SHM driver.

Of the media driver: whether it runs, its owner, its access rights, and how soon it drops a slow reader. Of
the SHM driver: whether one holds the namespace, and on which media driver.
"""

from __future__ import annotations

import os
import struct
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
from ..units import INT64_LIMIT
from .checks import Check, fail, ok, warn

_MEDIA_DRIVER: Final = "media driver"
_SHM_DRIVER: Final = "SHM driver"
_SLOW_TIMER_S: Final = 0.05
"""An embedded media driver checks its timers every 2 ms; Aeron's default is a second."""
_STALE_S: Final = 5.0
_ERRORS_LABEL: Final = "Errors: "
_ATTACH_TIMEOUT_S: Final = 5.0
"""The default of [context] attach_timeout."""
# Types of Aeron's counters, and the start of their key: registration id, session, stream, length of channel.
_PUBLISHER_LIMIT: Final = 1
_SUBSCRIBER_POSITION: Final = 4
_PUBLISHER_POSITION: Final = 12
_POSITION_KEY: Final = struct.Struct("<qiii")
_LABEL_PARTS_BEFORE_CHANNEL: Final = 4


@dataclass(frozen=True, slots=True)
class MediaDriverFacts:
    """Facts about a media driver that any process can read."""

    aeron_dir: str
    mark: MarkFile | None
    is_alive: bool = False
    """Its process exists, and its heartbeat is fresh."""
    is_stopped: bool = False
    """Its process exists, and its heartbeat is stale."""
    is_embedded: bool = False
    """A process of this package has embedded it."""
    timer_interval_s: float | None = None
    version: str = ""
    errors: int = 0
    error: str = ""
    """Why it cannot be read."""


def probe_media_driver(aeron_dir: str) -> MediaDriverFacts:
    """Reads the facts; takes up to 2.5 seconds if the media driver has a slow timer."""
    try:
        mark = read_mark_file(aeron_dir)
    except MediaDriverError as error:
        return MediaDriverFacts(aeron_dir, None, error=str(error))
    if mark is None:
        return MediaDriverFacts(aeron_dir, None)
    alive = mark.heartbeat_ms > 0 and mark.age_s(time.time_ns()) < _STALE_S and is_alive(mark.pid)
    if not alive:
        return MediaDriverFacts(aeron_dir, mark, is_stopped=mark.heartbeat_ms > 0 and mark.is_in_use())
    counters: list[AeronCounterValue] = []
    with suppress(MediaDriverError):
        counters = read_aeron_counters(aeron_dir)
    errors = next((counter for counter in counters if counter.label.startswith(_ERRORS_LABEL)), None)
    return MediaDriverFacts(
        aeron_dir,
        mark,
        is_alive=True,
        is_embedded=_is_embedded(aeron_dir, mark.pid),
        timer_interval_s=measure_timer_interval(mark.path),
        version="" if errors is None else errors.label.partition("version=")[2].partition(" ")[0],
        errors=0 if errors is None else errors.value,
    )


def _is_embedded(aeron_dir: str, pid: int) -> bool:
    try:
        return embed_lock_path(aeron_dir).read_text() == f"process {pid}"
    except OSError:
        return False


def check_media_driver(facts: MediaDriverFacts) -> list[Check]:
    """Findings on the media driver."""
    mark = facts.mark
    if facts.error:
        return [
            fail(
                _MEDIA_DRIVER,
                facts.error,
                "This user cannot connect to it.",
                "Run as its user, give its directory a group mode, or set AERON_DIR to your own directory.",
            )
        ]
    if mark is None:
        return [ok(_MEDIA_DRIVER, f"none in {facts.aeron_dir}; tensorpool.open() embeds one")]
    if facts.is_stopped:
        return [
            fail(
                _MEDIA_DRIVER,
                f"process {mark.pid} in {facts.aeron_dir} had no heartbeat for {_STALE_S:.0f} s or more",
                "It is stopped, or gets no processor time: no client can connect, and no frame is delivered.",
                f"kill -CONT {mark.pid} resumes it if it was stopped; otherwise end it and start it again.",
            )
        ]
    if not facts.is_alive:
        return [
            warn(
                _MEDIA_DRIVER,
                f"files of process {mark.pid} in {facts.aeron_dir}, which no longer runs",
                "No client can connect.",
                "Nothing: the next media driver that starts there removes them.",
            )
        ]
    since = datetime.fromtimestamp(mark.started_ms / 1e3).strftime("%Y-%m-%d %H:%M")
    kind = "embedded by tensorpool" if facts.is_embedded else "a process of its own"
    version = f"Aeron {facts.version}, " if facts.version else ""
    found = (
        f"{facts.aeron_dir}: {version}process {mark.pid} of {user_of(mark.owner_uid)}, {kind}, since {since}"
    )
    checks = [_check_access(found, mark), _check_timers(facts), _check_liveness(mark)]
    if facts.errors:
        checks.append(
            warn(
                "media driver errors",
                f"{facts.errors} so far",
                "A request to it failed.",
                f"AeronStat and ErrorStat on {facts.aeron_dir} show the errors.",
            )
        )
    return checks


def check_network_drivers(drivers: list[MediaDriverFacts]) -> list[Check]:
    """Findings on the media drivers for UDP, each the child of a program that uses the media driver."""
    name = "media driver for UDP"
    dead = [facts for facts in drivers if facts.mark is not None and not facts.is_alive]
    checks = [
        ok(name, f"{facts.aeron_dir}: process {facts.mark.pid} of {user_of(facts.mark.owner_uid)}")
        for facts in drivers
        if facts.mark is not None and facts.is_alive
    ]
    if dead:
        directories = ", ".join(facts.aeron_dir for facts in dead[:3]) + (", …" if len(dead) > 3 else "")
        checks.append(
            warn(
                name,
                f"files of {len(dead)} that no longer run: {directories}",
                "They take shared memory.",
                "Nothing: the next program that opens a UDP channel there removes them.",
            )
        )
    return checks


def _check_access(found: str, mark: MarkFile) -> Check:
    if mark.mode & 0o002:
        return warn(
            _MEDIA_DRIVER, f"{found}, mode {mark.mode:04o}", "Every user of this machine may send and read.",
            f"chmod o-w {mark.path.parent}, or let tensorpool embed one: its directory is private.",
        )  # fmt: skip
    if not os.access(mark.path, os.R_OK | os.W_OK):
        return fail(
            _MEDIA_DRIVER, found, "This user cannot connect to it.", "Run as its user, or share it by group."
        )
    return ok(_MEDIA_DRIVER, found)


def _check_timers(facts: MediaDriverFacts) -> Check:
    name = "slow readers"
    interval = facts.timer_interval_s
    if interval is None:
        return warn(
            name, "the media driver's timer interval could not be measured",
            "With Aeron's default of 1 s, a reader that stops blocks its producer for half a second.",
            "AERON_TIMER_INTERVAL=2ms for aeronmd, -Daeron.timer.interval=2ms for the Java driver.",
        )  # fmt: skip
    found = f"the media driver checks for them every {interval * 1e3:.0f} ms (measured)"
    if interval <= _SLOW_TIMER_S:
        return ok(name, found)
    return warn(
        name,
        found,
        "A reader that stops polling is dropped only then: until that, fast producers drop frames for all "
        "their consumers.",
        "Start it with AERON_TIMER_INTERVAL=2ms (aeronmd) or -Daeron.timer.interval=2ms (Java), or let "
        "tensorpool embed a media driver. Our channels set the untethered timeouts themselves.",
    )


def _check_liveness(mark: MarkFile) -> Check:
    """Compares the liveness timeout. Aeron requires an unblock timeout above it, and shows this one."""
    name = "killed clients"
    liveness_s = mark.client_liveness_timeout_ns / 1e9
    found = f"the media driver notices them after {liveness_s:g} s"
    if liveness_s < _ATTACH_TIMEOUT_S:
        return ok(name, found)
    return warn(
        name,
        found,
        "A client that is killed inside an offer blocks the control stream for longer than that: an attach "
        f"waits for {_ATTACH_TIMEOUT_S:g} s only, and fails. A driver of this package lets no lease expire "
        "meanwhile; others do.",
        "Start it with AERON_CLIENT_LIVENESS_TIMEOUT=3s AERON_PUBLICATION_UNBLOCK_TIMEOUT=3500ms (aeronmd) "
        "or -Daeron.client.liveness.timeout=3s -Daeron.publication.unblock.timeout=3500ms (Java), let "
        "tensorpool embed a media driver, or raise [context] attach_timeout.",
    )


@dataclass(frozen=True, slots=True)
class _Position:
    """A position counter of a stream: who it belongs to, where in the log it is, and on which channel."""

    registration_id: int
    session_id: int
    position: int
    channel: str


def _positions(counters: list[AeronCounterValue], type_id: int, stream_id: int) -> list[_Position]:
    positions = []
    for counter in counters:
        if counter.type_id == type_id and len(counter.key) >= _POSITION_KEY.size:
            registration_id, session_id, counted_id, _ = _POSITION_KEY.unpack_from(counter.key)
            if counted_id == stream_id:
                # Name, three ids, channel: "sub-pos: 11 -123 1000 aeron:ipc @0".
                channel = next(iter(counter.label.split()[_LABEL_PARTS_BEFORE_CHANNEL:]), "")
                positions.append(_Position(registration_id, session_id, counter.value, channel))
    return positions


def check_control_stream(counters: list[AeronCounterValue], stream_id: int) -> Check | None:
    """Finding on a control stream that no client can write to; None if clients can."""
    limits = {limit.session_id: limit.position for limit in _positions(counters, _PUBLISHER_LIMIT, stream_id)}
    subscribed = _positions(counters, _SUBSCRIBER_POSITION, stream_id)
    for published in _positions(counters, _PUBLISHER_POSITION, stream_id):
        # Untethered ones are left behind, and hold nothing back.
        readers = [
            reader
            for reader in subscribed
            if reader.session_id == published.session_id and "tether=false" not in reader.channel
        ]
        if not readers or published.position < limits.get(published.session_id, INT64_LIMIT):
            continue
        slowest = min(readers, key=lambda reader: reader.position)
        behind = published.position - slowest.position
        if behind > 0:
            return fail(
                "control stream",
                f"stream {stream_id} accepts no messages: subscription {slowest.registration_id} "
                f"({slowest.channel}) is {behind:,} bytes behind, and holds it back",
                "Clients of other implementations can neither attach nor keep a lease; those of this package "
                "get by with publications of their own until these are full too.",
                "Let its program poll, end that program, or subscribe there with tether=false.",
            )
    return None


def check_shm_driver(holder: Holder | None, *, namespace: str, aeron_dir: str) -> Check:
    """Finding on the SHM driver of a namespace."""
    if holder is None:
        return ok(_SHM_DRIVER, f"none holds namespace {namespace!r}; tensorpool.open() embeds one")
    found = str(holder)
    if holder.aeron_dir and Path(holder.aeron_dir).absolute() != Path(aeron_dir).absolute():
        return warn(
            _SHM_DRIVER,
            found,
            f"It uses another media driver than {aeron_dir}: requests from here never reach it.",
            f"AERON_DIR={holder.aeron_dir}, or choose another [shm] namespace.",
        )
    return ok(_SHM_DRIVER, found)


def driver_checks(
    base: Path, namespace: str, instance_id: str, *, aeron_dir: str, control_stream_id: int
) -> list[Check]:
    """Reads the driver's lock, without taking it, and the media driver's counters."""
    holder = read_holder(base, namespace, instance_id) or other_driver(aeron_dir, control_stream_id)
    name = qualified_namespace(namespace, instance_id)
    checks = [check_shm_driver(holder, namespace=name, aeron_dir=aeron_dir)]
    counters: list[AeronCounterValue] = []
    with suppress(MediaDriverError):
        counters = read_aeron_counters(aeron_dir)
    control = check_control_stream(counters, control_stream_id)
    return checks if control is None else [*checks, control]
