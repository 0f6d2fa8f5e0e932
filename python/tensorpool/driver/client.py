"""Queries of a running driver: its streams and leases, by way of `service:driver`."""

from __future__ import annotations

from typing import Any, Final, Protocol

from ..errors import CommandFailed, MediaDriverError, ServiceError
from ..runtime.counters import read_aeron_counters
from ..service import ServiceClient

DRIVER_LABEL: Final = "tensorpool-driver"
"""Start of the label of a driver's Aeron counter."""
SERVICE: Final = "driver"
_ROW_KEYS: Final = {"streams": "stream_id", "leases": "lease_id"}


class ServiceHost(Protocol):
    """The part of a context that opens service clients on one media driver."""

    @property
    def aeron_dir(self) -> str:
        """The media driver's directory."""
        ...

    def service(self, name: str, *, timeout: float) -> ServiceClient:
        """A client of one service."""
        ...


def drivers_on(aeron_dir: str) -> list[str]:
    """The counter labels of the SHM drivers on a media driver, read without sending a message."""
    try:
        counters = read_aeron_counters(aeron_dir)
        return [counter.label for counter in counters if counter.label.startswith(DRIVER_LABEL)]
    except MediaDriverError:
        return []


def driver_streams(context: ServiceHost, *, timeout: float) -> dict[int, dict[str, Any]]:
    """The driver's streams by id; empty if no driver runs, or it does not reply."""
    return {row["stream_id"]: row for row in _ask(context, timeout, "streams") or []}


def driver_leases(context: ServiceHost, stream_id: int, *, timeout: float) -> list[dict[str, Any]] | None:
    """The leases of a stream; None if no driver replies."""
    return _ask(context, timeout, "leases", stream_id=stream_id)


def _ask(context: ServiceHost, timeout: float, command: str, **arguments: Any) -> list[dict[str, Any]] | None:
    if not drivers_on(context.aeron_dir):
        return None
    try:
        with context.service(SERVICE, timeout=timeout) as client:
            return all_rows(client, command, **arguments)
    except ServiceError:
        return None


def all_rows(client: ServiceClient, command: str, **arguments: Any) -> list[dict[str, Any]]:
    """All rows of `streams()` or `leases()`, from as many replies as they need."""
    key = _ROW_KEYS[command]
    rows: list[dict[str, Any]] = []
    first = 0
    while part := client.call(command, {**arguments, "first": first}):
        try:
            last = int(part[-1][key])
        except (TypeError, LookupError, ValueError):
            raise CommandFailed(
                f"the driver's reply to {command} has rows without {key}; check its version"
            ) from None
        if last < first:
            raise CommandFailed(
                f"the driver's reply to {command} has {key} {last} after {first - 1}; check its version"
            )
        rows += part
        first = last + 1
    return rows
