"""Two hosts with a network between them: network namespaces, and clocks a million seconds apart."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.discovery.conftest import UNMET_S
from tests.integration.discovery.fleet import PERIOD_S, ClientProcess, RoleProcess
from tests.remote_process import RemoteError, RemoteProcess

# Addresses of the test's own two hosts; nothing leaves their namespaces.
FIRST, SECOND = "10.231.7.1", "10.231.7.2"
REQUEST_PORT, RESPONSE_PORT, ANNOUNCE_PORT = 40_123, 40_124, 40_125
CLOCK_OFFSET_S = 1_000_000

BRIDGE = f"""
[context]
mode = "driver"

[[bridge.mappings]]
source_stream_id = 10000
dest_stream_id = 20000

[bridge]
instance_id = "roof-to-lab"
payload_channel = "aeron:udp?endpoint={FIRST}:40126"
control_channel = "aeron:udp?endpoint={FIRST}:40127"
metadata_channel = "aeron:udp?endpoint={FIRST}:40128"
"""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class Host:
    """A network namespace with its own monotonic clock and media driver."""

    def __init__(self, name: str, address: str, aeron_dir: Path, base: Path, clock_offset_s: int) -> None:
        self.name, self.address, self.aeron_dir, self.base = name, address, aeron_dir, base
        clock = (
            ["unshare", "--time", "--monotonic", str(clock_offset_s), "--fork", "--kill-child"]
            if clock_offset_s
            else []
        )
        self.prefix = ["ip", "netns", "exec", name, *clock]

    def write(self, directory: Path, role: str, text: str) -> Path:
        file = directory / f"{self.name}-{role}.toml"
        media_driver = "auto" if role == "driver" else "external"
        file.write_text(
            f"""
            [aeron]
            dir = "{self.aeron_dir}"
            media_driver = "{media_driver}"
            announce_period = "{PERIOD_S}s"
            [shm]
            base_dir = "{self.base}"
            {text}
            """
        )
        return file


@pytest.fixture
def hosts(tmp_path: Path, shm_base: Path, aeron_dir: Path) -> Iterator[tuple[Host, Host]]:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("network and time namespaces need root, ip and unshare")
    names = [f"tp-{os.getpid()}-{number}" for number in (1, 2)]
    cables = [f"tp{os.getpid() % 100_000}{end}" for end in "ab"]
    with ExitStack() as stack:
        try:
            for name in names:
                _run("ip", "netns", "add", name)
                stack.callback(_run, "ip", "netns", "del", name)
            _run("unshare", "--time", "--monotonic", "1", "--fork", "true")
            _run("ip", "link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        except RuntimeError as error:
            pytest.skip(f"no namespaces here: {error}")
        for name, cable, address in zip(names, cables, (FIRST, SECOND), strict=True):
            _run("ip", "link", "set", cable, "netns", name)
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", cable)
            _run("ip", "-n", name, "link", "set", cable, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
        bases = [shm_base / "first", shm_base / "second"]
        for base in bases:
            base.mkdir()
            stack.callback(base.rmdir)
        stack.callback(shutil.rmtree, f"{aeron_dir}-2", ignore_errors=True)
        yield (
            Host(names[0], FIRST, aeron_dir, bases[0], 0),
            Host(names[1], SECOND, Path(f"{aeron_dir}-2"), bases[1], CLOCK_OFFSET_S),
        )


def driver(host: Host, name: str, stream_id: int, tmp_path: Path, more: str = "") -> RoleProcess:
    text = f"""
        [driver]
        instance_id = "{name}"
        {more}
        [[driver.streams]]
        stream_id = {stream_id}
        name = "{name}-camera"
        nslots = 4
        pools = ["64KiB"]
        """
    return RoleProcess(["driver", "run"], host.write(tmp_path, "driver", text), host.prefix)


@pytest.mark.requirement("discovery-6.4-1", "discovery-4.3-2", "discovery-5.2-3")
def test_registry_finds_streams_of_another_host_which_are_not_mapped(
    hosts: tuple[Host, Host], tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    first, second = hosts
    announced = f"aeron:udp?endpoint={FIRST}:{ANNOUNCE_PORT}"
    registry_text = f"""
        [discovery.provider]
        responses = ["{FIRST}/24:{RESPONSE_PORT}"]
        [registry]
        channel = "aeron:udp?endpoint={FIRST}:{REQUEST_PORT}"
        [[registry.drivers]]
        instance_id = "lab"
        announce_period = "{PERIOD_S}s"
        [[registry.drivers]]
        instance_id = "roof"
        announce_channel = "{announced}"
        announce_period = "{PERIOD_S}s"
        tags = ["reach:bridge"]
        """.replace(f"{FIRST}/24", "10.231.7.0/24")
    discovery_table = f'[discovery]\nchannel = "aeron:udp?endpoint={FIRST}:{REQUEST_PORT}"\ntimeout = "60s"'
    with ExitStack() as stack:
        # The same stream id on both hosts: the driver distinguishes them.
        lab = stack.enter_context(driver(first, "lab", 10_000, tmp_path))
        relay = f'announce_to = ["{announced}"]'
        roof = stack.enter_context(driver(second, "roof", 10_000, tmp_path, relay))
        wait_until(lambda: lab.ready and roof.ready, timeout=60)
        config = first.write(tmp_path, "registry", registry_text)
        registry = stack.enter_context(RoleProcess(["registry", "run"], config, first.prefix))
        wait_until(lambda: registry.ready, timeout=60)

        def client(host: Host, name: str) -> RemoteProcess:
            remote = stack.enter_context(RemoteProcess(ClientProcess, prefix=host.prefix))
            remote.call("open", config=str(host.write(tmp_path, name, discovery_table)))
            stack.callback(remote.call, "close")
            return remote

        here, there = client(first, "client"), client(second, "client")
        camera = client(second, "camera")
        lab_camera = client(first, "camera")
        epochs = {
            "roof": camera.call("produce", stream_id=10_000),
            "lab": lab_camera.call("produce", stream_id=10_000),
        }

        def both(remote: RemoteProcess) -> dict[str, str]:
            streams = remote.call("discover")
            return {found["driver"]: found["epoch"] for found in streams if found["producer_id"]}

        expected = {name: str(epoch) for name, epoch in epochs.items()}
        wait_until(lambda: both(here) == expected and both(there) == expected, timeout=60)
        # Configured names are indexed, too, and a clock that differs by days does not expire the stream.
        wait_until(lambda: here.call("discover", name="roof-camera"), timeout=60)
        later = time.monotonic() + 6 * PERIOD_S
        wait_until(lambda: time.monotonic() > later)
        wait_until(lambda: both(here) == expected, timeout=60)

        assert there.call("consume", name="roof-camera") == [10_000, expected["roof"]]
        camera.send("offer", value=5)
        assert there.call("receive") == 5
        camera.receive()
        # The local stream with the same id is not mistaken for that of the other host.
        for remote, name in ((here, "roof-camera"), (there, "lab-camera")):
            with pytest.raises(RemoteError, match="no bridge has a copy of it here") as error:
                remote.call("consume", name=name, find_timeout=UNMET_S)
            assert error.value.kind == "StreamNotLocal"

        # A bridge forwards one of them: it is found by the name of its source.
        for host, direction in ((first, "receive"), (second, "send")):
            config = host.write(tmp_path, f"bridge-{direction}", BRIDGE + f'direction = "{direction}"\n')
            bridge = stack.enter_context(RoleProcess(["bridge", "run"], config, host.prefix))
            wait_until(lambda bridge=bridge: bridge.ready, timeout=60)
        assert here.call("consume", name="roof-camera", find_timeout=60)[0] == 20_000
        camera.call("keep_offering", value=9)
        assert here.call("receive") == 9
        camera.call("stop_offering")

        # The streams of a host without announces expire.
        roof.kill()
        wait_until(lambda: both(here).keys() == {"lab"}, timeout=60)
        shutil.rmtree(second.base, ignore_errors=True)
        second.base.mkdir()
