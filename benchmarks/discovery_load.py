"""Announces of many drivers, and discovery requests: `python -m benchmarks.discovery_load PLAN`.

Sends once a second the announces and metadata of the planned streams, sends discovery requests to the
registry, measures the registry's process, and prints a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorpool as tp
from tensorpool import _native, sbe
from tensorpool.discovery import DiscoveryClient, Route, make_filter

from .driver_process import cpu_ns, media_driver_dir, resident_bytes
from .endpoint_process import exit_with_parent, write_line
from .plan import JsonPlan

PERIOD_NS = 1_000_000_000
FIRST_ANNOUNCE_STREAM = 11_000
FIRST_METADATA_STREAM = 12_000
_READY_TIMEOUT_NS = 60_000_000_000
_SLICES = 50
"""Announces are spread evenly over their period, as independent drivers would send them."""
_TIMEOUT_S = 10.0

clock = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class DiscoveryLoadPlan(JsonPlan):
    """Plan of one measurement."""

    directory: str
    registry_pid: int
    drivers: int
    streams: int
    """Streams of all drivers together."""
    requests: int
    steady_s: float


def stream_name(number: int) -> str:
    """Data source name of a stream."""
    return f"camera-{number:06}"


class DriverAnnouncements:
    """Publications of all drivers, and the schedule of their messages."""

    def __init__(self, conductor: _native.Conductor, plan: DiscoveryLoadPlan) -> None:
        self._announces = [
            _native.Publication(conductor, "aeron:ipc", FIRST_ANNOUNCE_STREAM + number)
            for number in range(plan.drivers)
        ]
        self._metadata = [
            _native.Publication(conductor, "aeron:ipc", FIRST_METADATA_STREAM + number)
            for number in range(plan.drivers)
        ]
        self._slices: list[list[int]] = [[] for _ in range(_SLICES)]
        for number in range(plan.streams):
            self._slices[number % _SLICES].append(number)
        self._drivers = plan.drivers
        self._next = 0
        self._due = clock()

    def wait_connected(self) -> None:
        """Waits until the registry subscribes to all of them."""
        deadline = clock() + _READY_TIMEOUT_NS
        while not all(publication.is_connected for publication in (*self._announces, *self._metadata)):
            if clock() > deadline:
                raise SystemExit("the registry did not subscribe to all streams in time")
            time.sleep(0.001)

    def send_due(self) -> None:
        """Sends the messages that are due."""
        while clock() >= self._due:
            for number in self._slices[self._next]:
                self._announce(number)
            self._next = (self._next + 1) % _SLICES
            self._due += PERIOD_NS // _SLICES

    def _announce(self, number: int) -> None:
        driver, stream_id = number % self._drivers, 20_000 + number
        pool = sbe.PayloadPool(
            pool_id=1,
            pool_nslots=8,
            stride_bytes=1 << 20,
            region_uri=f"shm:file?path=/dev/shm/tensorpool-fleet/default/{stream_id}/1794735843637545306/1.pool",
        )
        announce = sbe.ShmPoolAnnounce(
            stream_id=stream_id,
            producer_id=number + 1,
            epoch=1_794_735_843_637_545_306,
            announce_timestamp_ns=clock(),
            announce_clock_domain=sbe.ClockDomain.MONOTONIC,
            layout_version=1,
            header_nslots=8,
            header_slot_bytes=256,
            payload_pools=(pool,),
            header_region_uri=(
                f"shm:file?path=/dev/shm/tensorpool-fleet/default/{stream_id}/1794735843637545306/header.ring"
            ),
        )
        source = sbe.DataSourceAnnounce(
            stream_id=stream_id,
            producer_id=number + 1,
            epoch=1_794_735_843_637_545_306,
            meta_version=1,
            name=stream_name(number),
        )
        tags = sbe.Attribute(key="tensorpool.tags", format="application/json", value=b'["lab","camera"]')
        meta = sbe.DataSourceMeta(stream_id=stream_id, meta_version=1, timestamp_ns=1, attributes=(tags,))
        self._announces[driver].offer(announce.encode())
        self._metadata[driver].offer(source.encode())
        self._metadata[driver].offer(meta.encode())


def run(plan: DiscoveryLoadPlan) -> dict[str, Any]:
    """Measures response times and the registry's process."""
    with tp.open(
        "standalone",
        aeron_dir=media_driver_dir(plan.directory),
        media_driver="external",
        shm_base_dir=plan.directory,
    ) as context:
        announcements = DriverAnnouncements(context.connection.conductor, plan)
        announcements.wait_connected()
        route = Route("aeron:ipc", 7000, "aeron:ipc", 7004)
        with DiscoveryClient(context.connection.conductor, [route]) as client:
            _wait_complete(announcements, client, plan)
            by_name = [
                _time_request(
                    announcements, client, name=stream_name(number * 7919 % plan.streams), tags=["lab"]
                )
                for number in range(plan.requests)
            ]
            all_streams = [_time_request(announcements, client) for _ in range(max(3, plan.requests // 10))]
            size = _response_bytes(client, context, plan)
            began, cpu = clock(), cpu_ns(plan.registry_pid)
            while clock() < began + int(plan.steady_s * 1e9):
                announcements.send_due()
                time.sleep(0.001)
            busy = (cpu_ns(plan.registry_pid) - cpu) / (clock() - began)
        return {
            "by_name_p50_us": float(np.percentile(by_name, 50)),
            "by_name_p99_us": float(np.percentile(by_name, 99)),
            "all_p50_us": float(np.percentile(all_streams, 50)),
            "all_bytes": size,
            "busy_cores": busy,
            "resident_bytes": resident_bytes(plan.registry_pid, plan.directory),
        }


def _wait_complete(
    announcements: DriverAnnouncements, client: DiscoveryClient, plan: DiscoveryLoadPlan
) -> None:
    deadline = clock() + _READY_TIMEOUT_NS
    while len(client.find(make_filter(tags=["lab"]), timeout=_TIMEOUT_S)) < plan.streams:
        if clock() > deadline:
            raise SystemExit("the registry did not index all streams in time")
        for _ in range(100):
            announcements.send_due()
            time.sleep(0.001)


def _time_request(announcements: DriverAnnouncements, client: DiscoveryClient, **criteria: Any) -> float:
    """Microseconds from a discovery request to its result."""
    announcements.send_due()
    # A client may not send requests faster.
    time.sleep(0.022)
    filter_ = make_filter(**criteria)
    began = clock()
    streams = client.find(filter_, timeout=_TIMEOUT_S)
    if not streams:
        raise SystemExit(f"the registry found no stream for {criteria}")
    return (clock() - began) / 1e3


def _response_bytes(client: DiscoveryClient, context: tp.Context, plan: DiscoveryLoadPlan) -> int:
    """Bytes of the response with all streams, as received by a second subscription."""
    subscription = _native.Subscription(context.connection.conductor, "aeron:ipc?tether=false", 7004)
    try:
        deadline = clock() + _READY_TIMEOUT_NS
        while clock() < deadline:
            if subscription.is_connected:
                client.find(make_filter(), timeout=_TIMEOUT_S)
                sizes = [len(message) for message in subscription.poll(64)]
                if sizes:
                    return max(sizes)
            time.sleep(0.03)
        raise SystemExit("no discovery response was received in time")
    finally:
        subscription.close()


if __name__ == "__main__":
    exit_with_parent()
    write_line(json.dumps(run(DiscoveryLoadPlan.from_json(sys.argv[1]))))
