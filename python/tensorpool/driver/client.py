"""What the SHM driver knows of its streams and leases, for those who look. Without one there is nothing."""

from __future__ import annotations

from typing import Any, Final, Protocol

from ..errors import CommandFailed, MediaDriverError, ServiceError
from ..runtime.counters import read_aeron_counters
from ..service import ServiceClient

DRIVER_LABEL: Final = "tensorpool-driver"
"""How the label of the counter begins that a driver keeps among the media driver's."""
SERVICE: Final = "driver"


class ServiceHost(Protocol):
    """Whatever opens service clients on one media driver: a context."""

    @property
    def aeron_dir(self) -> str: ...
    def service(self, name: str, *, timeout: float) -> ServiceClient: ...


def drivers_on(aeron_dir: str) -> list[str]:
    """The labels of the SHM drivers on a media driver: known at once, without asking anybody."""
    try:
        return [one.label for one in read_aeron_counters(aeron_dir) if one.label.startswith(DRIVER_LABEL)]
    except MediaDriverError:
        return []


def driver_streams(context: ServiceHost, *, timeout: float) -> dict[int, dict[str, Any]]:
    """The driver's streams by id; none where no driver runs, or it does not answer."""
    return {one["stream_id"]: one for one in _ask(context, timeout, "streams") or []}


def driver_leases(context: ServiceHost, stream_id: int, *, timeout: float) -> list[dict[str, Any]] | None:
    """Who holds leases of a stream; None where no driver answers."""
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
    """All rows of `streams()` or `leases()`, however many answers they come in."""
    key = {"streams": "stream_id", "leases": "lease_id"}[command]
    rows: list[dict[str, Any]] = []
    first = 0
    while part := client.call(command, {**arguments, "first": first}):
        try:
            last = int(part[-1][key])
        except (TypeError, LookupError, ValueError):
            raise CommandFailed(f"the driver answers {command} with rows that have no {key}") from None
        if last < first:
            raise CommandFailed(f"the driver answers {command} with {key} {last} where {first} comes next")
        rows += part
        first = last + 1
    return rows
