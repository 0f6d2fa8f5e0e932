"""Two drivers and two registries, each in its own process, on one media driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tests.integration.discovery.fleet import PERIOD_S, ClientProcess, RoleProcess
from tests.ports import free_port
from tests.remote_process import RemoteError, RemoteProcess


class Deployment:
    """The processes and files of one test."""

    def __init__(self, stack: ExitStack, aeron_dir: Path, base: Path, tmp_path: Path) -> None:
        self.stack, self.aeron_dir, self.base, self.tmp = stack, aeron_dir, base, tmp_path

    def write(self, name: str, text: str, *, control: int = 1000, service: int = 4000) -> Path:
        file = self.tmp / f"{name}.toml"
        file.write_text(
            f"""
            [aeron]
            dir = "{self.aeron_dir}"
            media_driver = "external"
            announce_period = "{PERIOD_S}s"
            control_stream_id = {control}
            [shm]
            base_dir = "{self.base}"
            [service]
            control_stream_id = {service}
            status_stream_id = {service + 1}
            {text}
            """
        )
        return file

    def driver(self, name: str, stream_id: int, *, control: int, service: int) -> RoleProcess:
        config = self.write(
            name,
            f"""
            [driver]
            instance_id = "{name}"
            [[driver.streams]]
            stream_id = {stream_id}
            name = "{name}-camera"
            tags = ["camera", "{name}"]
            nslots = 4
            pools = ["64KiB"]
            """,
            control=control,
            service=service,
        )
        return self.stack.enter_context(RoleProcess(["driver", "run"], config))

    def registry(self, name: str, channel: str = "aeron:ipc", service: int = 4900) -> RoleProcess:
        drivers = "".join(
            f"""
            [[registry.drivers]]
            instance_id = "{driver}"
            control_stream_id = {control}
            streams = ["{stream}"]
            announce_period = "{PERIOD_S}s"
            """
            for driver, control, stream in (("lab", 1000, 10_000), ("roof", 2000, 10_001))
        )
        text = f"""
            [discovery.provider]
            responses = ["127.0.0.1:1-65535"]
            [registry]
            channel = "{channel}"
            {drivers}
            """
        return self.stack.enter_context(
            RoleProcess(["registry", "run"], self.write(name, text, service=service))
        )

    def client(self, name: str, *, control: int, service: int, discovery: str = "") -> RemoteProcess:
        config = self.write(name, discovery, control=control, service=service)
        remote = self.stack.enter_context(RemoteProcess(ClientProcess))
        remote.call("open", config=str(config))
        self.stack.callback(remote.call, "close")
        return remote


@pytest.fixture
def fleet(aeron_dir: Path, shm_base: Path, tmp_path: Path) -> Iterator[Deployment]:
    with tp.MediaDriver(aeron_dir), ExitStack() as stack:
        yield Deployment(stack, aeron_dir, shm_base, tmp_path)


@pytest.mark.leaves_files("a driver is killed")
@pytest.mark.requirement(
    "discovery-5.2-3",
    "discovery-3-3",
    "discovery-8-1",
    "discovery-6.2-2",
    "discovery-13-2",
    "driver-4.11-2",
)
def test_registries_index_two_drivers_and_survive_kills(
    fleet: Deployment, wait_until: Callable[..., Any]
) -> None:
    port, response_port = free_port(), free_port()
    second = f"aeron:udp?endpoint=127.0.0.1:{port}"
    lab = fleet.driver("lab", 10_000, control=1000, service=4000)
    roof = fleet.driver("roof", 10_001, control=2000, service=4100)
    first_registry, second_registry = fleet.registry("one"), fleet.registry("two", second, service=4910)
    wait_until(lambda: all(role.ready for role in (lab, roof, first_registry, second_registry)), timeout=60)
    discovery_table = f"""
        [discovery]
        channel = "aeron:ipc"
        replicas = ["{second}"]
        response_port = {response_port}
        timeout = "60s"
        """
    here = fleet.client("here", control=1000, service=4000, discovery=discovery_table)
    camera = fleet.client("camera", control=2000, service=4100)
    assert here.call("discover") == []

    epoch = camera.call("produce", stream_id=10_001)
    (found,) = wait_until(lambda: here.call("discover", name="roof-camera", tags=["camera"]), timeout=60)
    assert (found["driver"], found["stream_id"], found["epoch"]) == ("roof", 10_001, str(epoch))
    assert found["control_stream_id"] == 2000
    # It attaches at the stream's driver, which is not the driver of the context.
    assert here.call("consume", name="roof-camera") == [10_001, str(epoch)]
    camera.send("offer", value=7)
    assert here.call("receive") == 7
    assert camera.receive() == "published"

    # The producer's name precedes the configured one.
    camera.call("describe", name="sky")
    wait_until(lambda: here.call("discover", name="sky"), timeout=60)

    # One registry is killed, and the other answers. After a restart it has all streams again.
    first_registry.kill()
    (still,) = wait_until(lambda: here.call("discover", name="sky"), timeout=60)
    assert still["driver"] == "roof"
    second_registry.kill()
    with pytest.raises(RemoteError, match="no response"):
        here.call("discover", timeout=0.5)
    first_registry.start()
    wait_until(lambda: first_registry.ready, timeout=60)
    (again,) = wait_until(lambda: here.call("discover", name="sky"), timeout=60)
    assert again["epoch"] == str(epoch)

    # The streams of a killed driver expire with its announces.
    roof.kill()
    wait_until(lambda: here.call("discover", name="sky") == [], timeout=60)
    assert here.call("discover") == []
