"""A driver among the media driver's counters, where everybody on that media driver can see it.

The lock of a driver is its user's own; another user's driver on the same control stream is seen here.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

from ..errors import DriverAlreadyRunning, MediaDriverError
from ..runtime.counters import read_aeron_counters
from ..shm.epoch_files import is_alive
from .lock import Holder

_LOOKS = 50
_LOOK_S = 0.002
LABEL = "tensorpool-driver: namespace {place}, control stream {control}"
_LABEL = re.compile(r"tensorpool-driver: namespace (?P<place>\S+), control stream (?P<control>\d+)")


def presence_label(place: str, control_stream_id: int) -> str:
    """The label of the counter whose value is the driver's process id."""
    return LABEL.format(place=place, control=control_stream_id)


def _drivers_on(aeron_dir: str, control_stream_id: int) -> Iterator[tuple[int, str]]:
    """Process and place of each live driver on that control stream."""
    try:
        counters = read_aeron_counters(aeron_dir)
    except MediaDriverError:
        return
    for counter in counters:
        found = _LABEL.match(counter.label)
        # The counter of a killed driver stays for a while.
        if found is not None and int(found["control"]) == control_stream_id and is_alive(counter.value):
            yield counter.value, found["place"]


def other_driver(aeron_dir: str, control_stream_id: int) -> Holder | None:
    """A live driver of another process on that control stream."""
    for pid, place in _drivers_on(aeron_dir, control_stream_id):
        if pid != os.getpid():
            return Holder(pid=pid, namespace=place, aeron_dir=aeron_dir, control_stream_id=control_stream_id)
    return None


def place_on(aeron_dir: str, control_stream_id: int) -> str | None:
    """The namespace, with the instance id where there is one, of the driver on that control stream."""
    return next((place for _, place in _drivers_on(aeron_dir, control_stream_id)), None)


def refuse_beside_another(aeron_dir: str, control_stream_id: int) -> None:
    """Raises DriverHeld if somebody else's driver serves the control stream."""
    holder = other_driver(aeron_dir, control_stream_id)
    for _ in range(_LOOKS):
        if holder is None:
            return
        # One that has just ended in a process that lives on: its counter goes a moment after its lock.
        time.sleep(_LOOK_S)
        holder = other_driver(aeron_dir, control_stream_id)
    if holder is None:
        return
    raise DriverAlreadyRunning(
        f"control stream {control_stream_id} of the media driver {aeron_dir} has a driver already: "
        f"process {holder.pid}, namespace {holder.namespace!r}; attach to that one, stop it, or choose "
        "another control_stream_id",
        holder=holder.line(),
        pid=holder.pid,
        embedded=False,
    )
