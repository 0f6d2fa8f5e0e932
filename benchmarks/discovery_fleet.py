"""Many drivers' announces from one process, and who asks: `python -m benchmarks.discovery_fleet PLAN`.

Says once a second what so many drivers with so many streams would say, asks the registry meanwhile, looks at
its process, and ends with a line of JSON.
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
from .plan_text import PlanText
from .role import obey_the_parent, say

PERIOD_NS = 1_000_000_000
FIRST_ANNOUNCE_STREAM = 11_000
FIRST_METADATA_STREAM = 12_000
_PATIENCE_NS = 60_000_000_000
_SLICES = 50
"""Announces come evenly over their period, as those of drivers that know nothing of each other."""
_TIMEOUT_S = 10.0

clock = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class FleetPlan(PlanText):
    directory: str
    registry_pid: int
    drivers: int
    streams: int
    """Of all drivers together."""
    questions: int
    steady_s: float


def name_of(number: int) -> str:
    return f"camera-{number:06}"


class Fleet:
    """The voices of all drivers."""

    def __init__(self, conductor: _native.Conductor, plan: FleetPlan) -> None:
        self._announces = [
            _native.Publication(conductor, "aeron:ipc", FIRST_ANNOUNCE_STREAM + number)
            for number in range(plan.drivers)
        ]
        self._words = [
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
        deadline = clock() + _PATIENCE_NS
        while not all(voice.is_connected for voice in (*self._announces, *self._words)):
            if clock() > deadline:
                raise SystemExit("waited for the registry's ears in vain")
            time.sleep(0.001)

    def speak(self) -> None:
        """What is due by now."""
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
            name=name_of(number),
        )
        tags = sbe.Attribute(key="tensorpool.tags", format="application/json", value=b'["lab","camera"]')
        meta = sbe.DataSourceMeta(stream_id=stream_id, meta_version=1, timestamp_ns=1, attributes=(tags,))
        self._announces[driver].offer(announce.encode())
        self._words[driver].offer(source.encode())
        self._words[driver].offer(meta.encode())


def run(plan: FleetPlan) -> dict[str, Any]:
    with tp.open(
        "standalone",
        aeron_dir=media_driver_dir(plan.directory),
        media_driver="external",
        shm_base_dir=plan.directory,
    ) as context:
        fleet = Fleet(context.connection.conductor, plan)
        fleet.wait_connected()
        route = Route("aeron:ipc", 7000, "aeron:ipc", 7004)
        with DiscoveryClient(context.connection.conductor, [route]) as client:
            _wait_complete(fleet, client, plan)
            by_name = [
                _ask(fleet, client, name=name_of(number * 7919 % plan.streams), tags=["lab"])
                for number in range(plan.questions)
            ]
            everything = [_ask(fleet, client) for _ in range(max(3, plan.questions // 10))]
            size = _bytes_of(client, context, plan)
            began, cpu = clock(), cpu_ns(plan.registry_pid)
            while clock() < began + int(plan.steady_s * 1e9):
                fleet.speak()
                time.sleep(0.001)
            busy = (cpu_ns(plan.registry_pid) - cpu) / (clock() - began)
        return {
            "by_name_p50_us": float(np.percentile(by_name, 50)),
            "by_name_p99_us": float(np.percentile(by_name, 99)),
            "all_p50_us": float(np.percentile(everything, 50)),
            "all_bytes": size,
            "busy_cores": busy,
            "resident_bytes": resident_bytes(plan.registry_pid, plan.directory),
        }


def _wait_complete(fleet: Fleet, client: DiscoveryClient, plan: FleetPlan) -> None:
    deadline = clock() + _PATIENCE_NS
    while len(client.find(make_filter(tags=["lab"]), timeout=_TIMEOUT_S)) < plan.streams:
        if clock() > deadline:
            raise SystemExit("the registry did not hear of all streams")
        for _ in range(100):
            fleet.speak()
            time.sleep(0.001)


def _ask(fleet: Fleet, client: DiscoveryClient, **wanted: Any) -> float:
    """Microseconds from the question to the streams that were found."""
    fleet.speak()
    # Not faster than a client may ask.
    time.sleep(0.022)
    filter_ = make_filter(**wanted)
    began = clock()
    found = client.find(filter_, timeout=_TIMEOUT_S)
    if not found:
        raise SystemExit(f"nothing was found by {wanted}")
    return (clock() - began) / 1e3


def _bytes_of(client: DiscoveryClient, context: tp.Context, plan: FleetPlan) -> int:
    """How long the answer with all streams is, as another listener of the same stream sees it."""
    ear = _native.Subscription(context.connection.conductor, "aeron:ipc?tether=false", 7004)
    try:
        deadline = clock() + _PATIENCE_NS
        while clock() < deadline:
            if ear.is_connected:
                client.find(make_filter(), timeout=_TIMEOUT_S)
                sizes = [len(message) for message in ear.poll(64)]
                if sizes:
                    return max(sizes)
            time.sleep(0.03)
        raise SystemExit("no answer was overheard")
    finally:
        ear.close()


if __name__ == "__main__":
    obey_the_parent()
    say(json.dumps(run(FleetPlan.from_json(sys.argv[1]))))
