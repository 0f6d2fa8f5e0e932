"""What a bridge has to know about its host before it takes stream ids: the driver's ids and other bridges.

The driver and the bridges are asked by their services. Their names come from the counters of the media
driver, so nobody waits for a program that does not run.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ..context.context import Context
from ..driver.client import SERVICE, drivers_on, stream_rows
from ..errors import ConfigError, MediaDriverError, ServiceError
from ..runtime.config import IdRange
from ..runtime.counters import read_aeron_counters
from .config import BridgeSettings
from .faults import BridgeIds, DriverIds, destination_range, driver_faults, neighbour_faults

_TIMEOUT_S: Final = 5.0
_BRIDGE_LABEL: Final = re.compile(r"^tensorpool: bridge/(.+) sent \(")


def check_destinations(context: Context, settings: BridgeSettings) -> bool:
    """Whether the driver could be asked. Raises ConfigError if destinations overlap other uses of ids."""
    others = [ids for name in _other_bridges(context, settings) if (ids := _bridge_ids(context, name))]
    faults = list(neighbour_faults(settings, others))
    driver = _driver_ids(context) if destination_range(settings) is not None else None
    if driver is not None:
        faults += driver_faults(settings, driver)
    if faults:
        raise ConfigError("; ".join(f"bridge.{key}: {reason}" for key, reason in faults))
    return driver is not None or destination_range(settings) is None


def _driver_ids(context: Context) -> DriverIds | None:
    """The ids of the running driver; None if there is none that answers."""
    if not drivers_on(context.aeron_dir):
        return None
    try:
        with context.service(SERVICE, timeout=_TIMEOUT_S) as client:
            status: dict[str, Any] = client.call("status")
            rows = stream_rows(client)
    except ServiceError:
        return None
    if "dynamic_ids" not in status:
        # Another implementation, or an older version: its answers decide.
        return None
    return DriverIds(
        static=frozenset(row["stream_id"] for row in rows if row["kind"] == "static"),
        dynamic=IdRange.parse(status["dynamic_ids"]),
        bridges=IdRange.parse(status["bridge_ids"]),
        any_stream=status["any_stream"],
    )


def _other_bridges(context: Context, settings: BridgeSettings) -> set[str]:
    try:
        labels = [counter.label for counter in read_aeron_counters(context.aeron_dir)]
    except MediaDriverError:
        return set()
    names = {match[1] for label in labels if (match := _BRIDGE_LABEL.match(label))}
    return names - {settings.instance_id}


def _bridge_ids(context: Context, instance_id: str) -> BridgeIds | None:
    try:
        with context.service("bridge", instance=instance_id, timeout=_TIMEOUT_S) as client:
            status: dict[str, Any] = client.call("status")
        ids = status["dest_stream_id_range"]
        return BridgeIds(
            instance_id,
            None if ids is None else IdRange.parse(ids),
            frozenset(map(int, status["dest_stream_ids"])),
        )
    except (ServiceError, KeyError, TypeError, ValueError, ConfigError):
        # It ended meanwhile, or does not say: what it uses is noticed when a destination is attached.
        return None
