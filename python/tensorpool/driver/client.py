"""Queries of a running driver: its streams and leases, by way of `service:driver`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, TypedDict, TypeVar

from ..errors import CommandFailed, MediaDriverError, ServiceError
from ..runtime.counters import CounterSnapshot, read_aeron_counters
from ..service import ServiceClient

DRIVER_LABEL: Final = "tensorpool-driver"
"""Start of the label of a driver's Aeron counter."""
SERVICE: Final = "driver"
_Row = TypeVar("_Row")
_ROW_KEYS: Final = {"streams": "stream_id", "leases": "lease_id"}


class StreamRow(TypedDict):
    """One stream in the reply to `streams()`. 64-bit numbers are text."""

    stream_id: int
    name: str
    tags: list[str]
    data_source_id: str | None
    kind: Literal["static", "dynamic"]
    nslots: int
    pools: list[int]
    numa_node: int | None
    """The node of the files; without files, the planned one."""
    bytes: int
    epoch: str | None
    state: str
    fault: str | None
    """Why the stream waits for files."""
    producer: int | None
    consumers: int
    directory: str | None


class LeaseRow(TypedDict):
    """One lease in the reply to `leases()`. 64-bit numbers are text."""

    lease_id: str
    stream_id: int
    client_id: int
    role: str
    state: str
    age_s: float
    expires_in_s: float | None
    epoch: str | None


class DriverStatus(TypedDict):
    """The reply to `status()`."""

    namespace: str
    instance: str
    pid: int
    user: str
    uptime_s: float
    base_dir: str
    aeron_dir: str
    control_stream_id: int
    control_fault: str | None
    """Why the control stream does not work at the moment."""
    embedded: bool
    keepalive_s: float
    grace: int
    announce_period_s: float
    streams: int
    leases: int
    bytes: int
    quota: int | None
    max_leases: int
    max_requests_per_second: int
    dynamic_ids: str
    bridge_ids: str
    any_stream: bool
    counters: CounterSnapshot
    discovery: CounterSnapshot


class StopReply(TypedDict):
    """The reply to `stop()`."""

    pid: int
    leases: int


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


def driver_streams(context: ServiceHost, *, timeout: float) -> dict[int, StreamRow]:
    """The driver's streams by id; empty if no driver runs, or it does not reply."""
    rows: list[StreamRow] = _ask(context, timeout, stream_rows) or []
    return {row["stream_id"]: row for row in rows}


def driver_leases(context: ServiceHost, stream_id: int, *, timeout: float) -> list[LeaseRow] | None:
    """The leases of a stream; None if no driver replies."""
    return _ask(context, timeout, lambda client: lease_rows(client, stream_id))


def _ask(
    context: ServiceHost, timeout: float, query: Callable[[ServiceClient], list[_Row]]
) -> list[_Row] | None:
    if not drivers_on(context.aeron_dir):
        return None
    try:
        with context.service(SERVICE, timeout=timeout) as client:
            return query(client)
    except ServiceError:
        return None


def stream_rows(client: ServiceClient) -> list[StreamRow]:
    """All streams of a driver."""
    return all_rows(client, "streams")


def lease_rows(client: ServiceClient, stream_id: int | None = None) -> list[LeaseRow]:
    """All leases of a driver, or of one stream."""
    return all_rows(client, "leases", stream_id=stream_id)


def all_rows(client: ServiceClient, command: str, **arguments: Any) -> list[Any]:
    """All rows of `streams()` or `leases()`, from as many replies as they need."""
    key = _ROW_KEYS[command]
    rows: list[Any] = []
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
