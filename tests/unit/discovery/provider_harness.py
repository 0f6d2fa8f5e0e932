"""A provider without Aeron, and the messages for it: announces, metadata and requests."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from tensorpool.attributes.tags import make_attributes, to_wire
from tensorpool.discovery import ProviderSettings
from tensorpool.discovery.index import DiscoveryIndex, DriverIdentity
from tensorpool.discovery.provider import IndexUpdater
from tensorpool.discovery.requests import DiscoveryCounters, Reply, RequestQueue
from tensorpool.sbe import (
    ClockDomain,
    DataSourceAnnounce,
    DataSourceMeta,
    DiscoveryRequest,
    DiscoveryResponse,
    PayloadPool,
    ShmPoolAnnounce,
    Tag,
)

# Hypothesis must not report a slow machine as a failure.
NO_DEADLINE = hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SECOND_NS = 1_000_000_000
PERIOD_NS = SECOND_NS
WINDOW_NS = 3 * PERIOD_NS
LAB = DriverIdentity("lab", "aeron:ipc", 1000)
ROOF = DriverIdentity("roof", "aeron:ipc", 2000)
SAMPLE = (
    {
        "stream_id": 1,
        "name": "camera-1",
        "tags": ("lab", "Calibrated"),
        "data_source_id": 71,
        "producer_id": 5,
    },
    {"stream_id": 2, "name": "camera-2", "tags": ("lab",), "data_source_id": 72, "producer_id": 0},
    {"stream_id": 3, "name": "Camera-1", "tags": ("LAB", "x")},
    {"stream_id": 4},
)


def announce(stream_id: int = 10_000, epoch: int = 5, **changes: Any) -> ShmPoolAnnounce:
    nslots = changes.pop("nslots", 8)
    pool = PayloadPool(
        pool_id=1,
        pool_nslots=changes.pop("pool_nslots", nslots),
        stride_bytes=4096,
        region_uri="shm:file?path=/p",
    )
    fields: dict[str, Any] = {
        "stream_id": stream_id,
        "producer_id": 7,
        "epoch": epoch,
        "announce_timestamp_ns": 123,
        "announce_clock_domain": ClockDomain.MONOTONIC,
        "layout_version": 1,
        "header_nslots": nslots,
        "header_slot_bytes": 256,
        "payload_pools": (pool,),
        "header_region_uri": "shm:file?path=/h",
    }
    return ShmPoolAnnounce(**{**fields, **changes})


def source(
    stream_id: int = 10_000, epoch: int = 5, name: str = "camera-1", version: int = 1
) -> DataSourceAnnounce:
    return DataSourceAnnounce(
        stream_id=stream_id, producer_id=7, epoch=epoch, meta_version=version, name=to_wire(name)
    )


def meta(
    stream_id: int = 10_000,
    tags: tuple[str, ...] = (),
    data_source_id: int | None = None,
    version: int = 1,
) -> DataSourceMeta:
    return DataSourceMeta(
        stream_id=stream_id,
        meta_version=version,
        timestamp_ns=9,
        attributes=make_attributes(tags, data_source_id),
    )


def request(**changes: Any) -> DiscoveryRequest:
    tags = changes.pop("tags", ())
    fields: dict[str, Any] = {
        "request_id": 1,
        "client_id": 42,
        "response_stream_id": 7004,
        "response_channel": "aeron:ipc",
        "tags": tuple(Tag(tag=to_wire(tag)) for tag in tags),
        "data_source_name": to_wire(changes.pop("name", "")),
    }
    return DiscoveryRequest(**{**fields, **changes})


class ProviderHarness:
    """An index with two drivers and a request queue; the test sets the time."""

    def __init__(self, **provider: Any) -> None:
        self.now_ns = 100 * SECOND_NS
        self.counters = DiscoveryCounters()
        self.index = DiscoveryIndex(max_streams=provider.pop("max_streams", 100_000))
        for driver in (LAB, ROOF):
            self.index.set_driver(driver, announce_period_ns=PERIOD_NS)
        self.lab = IndexUpdater(self.index, "lab", self.counters)
        self.roof = IndexUpdater(self.index, "roof", self.counters)
        settings = ProviderSettings(**provider)
        self.requests = RequestQueue(
            self.index, settings, self.counters, reserved=frozenset({1001, 1100}), now_ns=self.now_ns
        )

    def advance(self, ns: int) -> None:
        self.now_ns += ns

    def add(
        self,
        stream_id: int = 10_000,
        *,
        epoch: int = 5,
        name: str = "",
        tags: tuple[str, ...] = (),
        data_source_id: int | None = None,
        at: str = "lab",
        **announced: Any,
    ) -> None:
        """Announces a stream and, if it has labels, publishes its metadata."""
        updater = self.lab if at == "lab" else self.roof
        updater.on_message(announce(stream_id, epoch, **announced).encode(), self.now_ns)
        if name or tags or data_source_id is not None:
            updater.on_message(source(stream_id, epoch, name).encode(), self.now_ns)
            updater.on_message(meta(stream_id, tags, data_source_id).encode(), self.now_ns)

    def reply(self, **changes: Any) -> Reply | None:
        return self.requests.on_message(request(**changes).encode(), self.now_ns)

    def ask(self, **changes: Any) -> DiscoveryResponse:
        reply = self.reply(**changes)
        assert reply is not None
        return DiscoveryResponse.decode(reply.message)

    def found(self, **changes: Any) -> list[int]:
        return sorted(result.stream_id for result in self.ask(**changes).results)
