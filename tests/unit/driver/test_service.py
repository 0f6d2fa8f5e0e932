"""Embedded drivers, and the commands of `service:driver`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorpool import _native
from tensorpool.driver import EmbeddedDriver, StreamSettings, read_holder
from tensorpool.errors import MediaDriverUnavailable, RequestRejected
from tensorpool.sbe import (
    LeaseRevokeReason,
    ResponseCode,
    Role,
    ShmDriverShutdown,
    ShmLeaseRevoked,
    ShutdownReason,
)
from tests.unit.driver.agent_harness import IDS, PERIOD_NS, STREAM, RawClient, agent


@pytest.mark.requirement("driver-4.11-1", "driver-14-3")
def test_embedded_driver_grants_leases(
    embed: Callable[..., EmbeddedDriver], raw_client: Callable[..., RawClient], shm_base: Path
) -> None:
    with embed(any_stream=True) as driver:
        assert driver.is_ready
        holder = read_holder(shm_base, "default")
        assert holder is not None
        assert (holder.embedded, holder.control_stream_id) == (True, IDS.control)
        client = raw_client()
        granted = client.attach(7, 5, Role.PRODUCER)
        assert granted.code is ResponseCode.OK
        assert Path(_native.parse_region_uri(granted.header_region_uri).path).is_relative_to(shm_base)
    assert not driver.is_running
    assert client.next(ShmDriverShutdown).reason is ShutdownReason.NORMAL


def test_embedded_driver_needs_a_media_driver(
    conductor: _native.Conductor, media_driver: Path, shm_base: Path
) -> None:
    conductor.close()
    with pytest.raises((MediaDriverUnavailable, ValueError)):
        EmbeddedDriver(agent(conductor, media_driver, shm_base), timeout=0.2)
    assert read_holder(shm_base, "default") is None
    assert list(shm_base.iterdir()) == []


@pytest.mark.requirement("driver-4.4-6")
def test_service_returns_status_streams_and_leases(
    embed: Callable[..., EmbeddedDriver],
    raw_client: Callable[..., RawClient],
    shm_base: Path,
    media_driver: Path,
) -> None:
    embed(quota_bytes=1 << 30)
    client = raw_client()
    granted = client.attach(STREAM, 5, Role.PRODUCER)
    client.attach(STREAM, 6, Role.CONSUMER)
    with client.service() as service:
        status = service.call("status")
        assert status["counters"].pop("foreign") >= 0
        assert {name: status[name] for name in ("namespace", "instance", "pid", "embedded")} == {
            "namespace": "default",
            "instance": "",
            "pid": os.getpid(),
            "embedded": True,
        }
        assert (status["keepalive_s"], status["grace"]) == (1.0, 3)
        assert (status["announce_period_s"], status["quota"]) == (PERIOD_NS / 1e9, 1 << 30)
        assert (status["base_dir"], status["aeron_dir"]) == (str(shm_base), str(media_driver))
        assert (status["streams"], status["leases"]) == (1, 2)
        assert status["bytes"] == 64 * 2 + 4 * (256 + 4096)
        assert status["counters"]["attaches"] == 2
        (stream,) = service.call("streams")
        assert stream["directory"] == str(
            Path(_native.parse_region_uri(granted.header_region_uri).path).parent
        )
        assert {name: value for name, value in stream.items() if name != "directory"} == {
            "stream_id": STREAM,
            "name": "camera-1",
            "tags": ["lab"],
            "data_source_id": None,
            "kind": "static",
            "nslots": 4,
            "pools": [4096],
            "numa_node": stream["numa_node"],
            "bytes": status["bytes"],
            "epoch": str(granted.epoch),
            "state": "used",
            "fault": None,
            "producer": 5,
            "consumers": 1,
        }
        leases = service.call("leases")
        assert [(row["client_id"], row["role"], row["state"]) for row in leases] == [
            (5, "producer", "attached"),
            (6, "consumer", "attached"),
        ]
        assert leases[0]["lease_id"] == str(granted.lease_id)
        assert leases[0]["epoch"] == str(granted.epoch)
        assert 0 <= leases[0]["age_s"] < 60
        assert leases[0]["expires_in_s"] <= 3


def test_service_lists_come_in_parts(
    embed: Callable[..., EmbeddedDriver], raw_client: Callable[..., RawClient]
) -> None:
    embed(
        streams=tuple(StreamSettings(stream_id=n, name="x" * 200, tags=("y" * 200,)) for n in range(1, 1001))
    )
    client = raw_client()
    with client.service() as service:
        rows: list = []
        while part := service.call("streams", first=rows[-1]["stream_id"] + 1 if rows else None):
            rows += part
        assert [row["stream_id"] for row in rows] == list(range(1, 1001))
        assert [row["stream_id"] for row in service.call("streams", first=500, limit=2)] == [500, 501]
        for arguments in ({"first": "x"}, {"limit": -1}, {"limit": "many"}):
            with pytest.raises(Exception, match="use a whole number"):
                service.call("streams", arguments)


def test_provision_by_command(
    embed: Callable[..., EmbeddedDriver], raw_client: Callable[..., RawClient]
) -> None:
    with embed():
        client = raw_client()
        with client.service(token=None) as service:
            row = service.call("provision", stream_id=20_000, nslots=2, pools=["4KiB"], name="cam")
            assert (row["nslots"], row["pools"], row["name"], row["state"]) == (2, [4096], "cam", "absent")
            assert client.attach(20_000, 5, Role.PRODUCER).header_nslots == 2
            with pytest.raises(Exception, match="it can get 4 slots of 4KiB when the producer has detached"):
                service.call("provision", stream_id=20_000, nslots=4)
            with pytest.raises(Exception, match="from 20000 to 29999 or 50000 to 59999 only"):
                service.call("provision", stream_id=5)
    # The next driver loads the provision.
    embed()
    with raw_client().service() as service:
        assert [row["name"] for row in service.call("streams")] == ["camera-1", "cam"]


def test_revoke_command_needs_the_token(
    embed: Callable[..., EmbeddedDriver], raw_client: Callable[..., RawClient]
) -> None:
    embed()
    client = raw_client()
    granted = client.attach(STREAM, 5, Role.PRODUCER)
    with (
        client.service(token="wrong") as service,
        pytest.raises(RequestRejected, match="needs the service's token"),
    ):
        service.call("revoke", stream_id=STREAM)
    with client.service() as service:
        with pytest.raises(Exception, match="needs a lease_id, a stream_id or a client_id"):
            service.call("revoke")
        (row,) = service.call("revoke", lease_id=str(granted.lease_id), reason="maintenance")
        assert (row["client_id"], row["state"]) == (5, "revoked")
    notice = client.next(ShmLeaseRevoked, lease_id=granted.lease_id)
    assert notice.reason is LeaseRevokeReason.REVOKED
    assert notice.error_message == "revoked by the administrator: maintenance"
    assert granted.epoch is not None
    assert client.announce(STREAM, granted.epoch).producer_id == 0


def test_dangerous_commands_are_refused_without_a_token(
    embed: Callable[..., EmbeddedDriver], raw_client: Callable[..., RawClient]
) -> None:
    driver = embed(token=None)
    with raw_client().service() as service:
        for name in ("revoke", "stop"):
            with pytest.raises(RequestRejected, match="has no token"):
                service.call(name)
    assert driver.is_running


@pytest.mark.requirement("driver-4.12-1", "driver-4.12-2")
def test_stop_by_command(
    embed: Callable[..., EmbeddedDriver], raw_client: Callable[..., RawClient], wait_until: Callable[..., Any]
) -> None:
    driver = embed()
    client = raw_client()
    client.attach(STREAM, 5, Role.PRODUCER)
    with client.service() as service:
        assert service.call("stop", reason="over") == {"pid": os.getpid(), "leases": 1}
    notice = client.next(ShmDriverShutdown)
    assert (notice.reason, notice.error_message) == (ShutdownReason.ADMIN, "over")
    wait_until(lambda: not driver.is_running)
