"""Bridges between network namespaces, with UDP links that can be disconnected and with another clock.

Skipped where namespaces are not permitted.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import leaks
from tests.e2e.namespaces import CLOCK_S, PATIENCE_S, HostFactory, NamespaceHost, network, receive_frames, sh
from tests.e2e.pages import ROOT, blocks

pytestmark = [
    pytest.mark.long,
    pytest.mark.leaves_files("processes in a time namespace are killed, their drivers with them"),
]

CONFIG = """
[bridge]
instance_id = "between-namespaces"
payload_channel = "{payload}"
control_channel = "{control}"
{more}

[[bridge.mappings]]
source_stream_id = 10000
dest_stream_id = 20000

[driver]
any_stream = true
"""
PORTS = {"payload": 40100, "control": 40101}
METADATA = 'metadata_channel = "aeron:udp?endpoint={address}:40102"'


@pytest.fixture
def host_factory(aeron_dir: Path, shm_base: Path, tmp_path: Path) -> Iterator[HostFactory]:
    yield HostFactory(aeron_dir, shm_base, tmp_path)
    for directory in aeron_dir.parent.glob(f"{aeron_dir.name}-*"):
        leaks.remove(directory)


def start_drivers(
    stack: ExitStack, hosts: tuple[NamespaceHost, ...], wait_until: Callable[..., Any]
) -> list[ExitStack]:
    """Starts a driver on each host; returns what closes them."""
    drivers = []
    for host in hosts:
        driver = stack.enter_context(ExitStack())
        driver.enter_context(host.role("driver"))
        # Clients need the media driver's file. A ready file would not do: the clocks differ.
        wait_until((host.line.aeron_dir / "cnc.dat").exists, timeout=PATIENCE_S)
        drivers.append(driver)
    return drivers


def unicast(address: str, **more: str) -> str:
    channels = {purpose: f"aeron:udp?endpoint={address}:{port}" for purpose, port in PORTS.items()}
    return CONFIG.format(**channels, more=METADATA.format(address=address) + "\nintegrity = true", **more)


def test_frames_cross_namespaces_with_another_clock(
    host_factory: HostFactory, wait_until: Callable[..., Any]
):
    with network(2) as net, ExitStack() as stack:
        here = host_factory.host(net.hosts[0], unicast("10.77.1.2"))
        there = host_factory.host(net.hosts[1], unicast("10.77.1.2"), own_clock=True)
        start_drivers(stack, (here, there), wait_until)
        stack.enter_context(there.role("bridge", "--direction", "receive"))
        stack.enter_context(here.role("bridge"))
        viewer = stack.enter_context(there.viewer())
        stack.enter_context(here.camera())
        first = receive_frames(viewer, 20)
        assert first[0]["now"] - time.monotonic() > CLOCK_S / 2, "the receiving host has another clock"
        net.disconnect()
        time.sleep(1.0)
        net.reconnect()
        receive_frames(viewer, 20, after=first[-1]["seq"] + 150)
        wait_until(lambda: there.is_balanced(40), timeout=PATIENCE_S)


def multicast(host: int) -> dict[str, str]:
    """Multicast channels: the same on every host."""
    del host
    return {
        purpose: f"aeron:udp?endpoint=224.20.30.39:{port}|interface=10.77.1.0/24"
        for purpose, port in PORTS.items()
    }


def multi_destination(host: int) -> dict[str, str]:
    """Multi-destination channels: receivers connect to the control address of the sender."""
    endpoint = "" if host == 1 else f"endpoint=10.77.1.{host}:{{port}}|"
    return {
        purpose: f"aeron:udp?{endpoint.format(port=port)}control=10.77.1.1:{port}|control-mode=dynamic"
        for purpose, port in PORTS.items()
    }


@pytest.mark.parametrize("channels", [multicast, multi_destination])
def test_one_sender_serves_two_receivers_with_exact_ledgers(
    host_factory: HostFactory, wait_until: Callable[..., Any], channels: Callable[[int], dict[str, str]]
):
    with network(3) as net, ExitStack() as stack:
        hosts = tuple(
            host_factory.host(
                name,
                CONFIG.format(**channels(number), more="forward_metadata = false"),
                own_clock=number == 3,
            )
            for number, name in enumerate(net.hosts, start=1)
        )
        here, *others = hosts
        start_drivers(stack, hosts, wait_until)
        for host in others:
            stack.enter_context(host.role("bridge", "--direction", "receive"))
        viewers = [stack.enter_context(host.viewer()) for host in others]
        stack.enter_context(here.role("bridge"))
        stack.enter_context(here.camera())
        first = [receive_frames(viewer, 20)[-1]["seq"] for viewer in viewers]
        # One of the two is disconnected: the other continues, and the first one recovers.
        net.disconnect(2)
        receive_frames(viewers[0], 20, after=first[0] + 200)
        net.reconnect(2)
        receive_frames(viewers[1], 20, after=first[1] + 400)
        for host in others:
            wait_until(lambda host=host: host.is_balanced(40), timeout=PATIENCE_S)


@pytest.mark.parametrize("end", ["sender", "receiver", "the camera's driver", "the other driver"])
def test_bridge_between_namespaces_recovers_after_a_kill(
    host_factory: HostFactory, wait_until: Callable[..., Any], end: str
):
    with network(2) as net, ExitStack() as stack:
        here, there = (host_factory.host(name, unicast("10.77.1.2")) for name in net.hosts)
        ends: dict[str, tuple[NamespaceHost, tuple[str, ...]]] = {
            "the camera's driver": (here, ("driver",)),
            "the other driver": (there, ("driver",)),
            "receiver": (there, ("bridge", "--direction", "receive")),
            "sender": (here, ("bridge",)),
        }
        processes: dict[str, ExitStack] = {}
        for name, (host, arguments) in ends.items():
            processes[name] = stack.enter_context(ExitStack())
            processes[name].enter_context(host.role(*arguments))
            wait_until((host.line.aeron_dir / "cnc.dat").exists, timeout=PATIENCE_S)
        viewer = stack.enter_context(there.viewer())
        camera = stack.enter_context(ExitStack())
        camera.enter_context(here.camera())
        first = receive_frames(viewer, 20)
        # SIGKILL; an embedded media driver ends with its driver.
        processes[end].close()
        host, arguments = ends[end]
        stack.enter_context(host.role(*arguments))
        # Sequences of a new epoch start at zero.
        assert len(receive_frames(viewer, 200)) == 200 > len(first)
        camera.close()
        ledger, sent = wait_until(lambda: settled(here, there, end != "receiver"), timeout=PATIENCE_S)
        assert ledger["exact"]
        assert ledger["published"] == ledger["delivered"] + sum(ledger["dropped"].values())
        assert ledger["whole"] == ("driver" in end)
        if end == "receiver":
            assert 0 < ledger["published"] <= sent["published"], "from the common start position on"
        else:
            assert ledger["dropped"]["sender"] == sum(sent["dropped"].values())
        if "driver" not in end:
            # A killed media driver loses the datagrams that it has not sent or delivered.
            assert ledger["dropped"]["network"] == 0


def settled(
    here: NamespaceHost, there: NamespaceHost, includes_all: bool
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The final ledgers of both ends. `includes_all`: of all frames that the sender has counted."""
    before, sent = there.status(), here.status()
    time.sleep(1.5)
    after = there.status()
    if before is None or after is None or sent is None or after["ledger"] is None:
        return None
    ledger: dict[str, Any] = after["ledger"]
    is_reported = (
        ledger["published"] == sent["published"] if includes_all else ledger["dropped"]["network"] == 0
    )
    is_same = ledger == before["ledger"] and sent == here.status()
    return (ledger, sent) if is_reported and is_same else None


def test_wireguard_recipe_hides_all_traffic(
    host_factory: HostFactory, wait_until: Callable[..., Any], tmp_path: Path
):
    """The recipe of the page, with a userspace WireGuard; `ip` and `wg` do the work of `wg-quick`."""
    for tool in ("wg", "wireguard-go"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    page = ROOT / "docs" / "how-to" / "connect-two-hosts.md"
    [text] = [block for block in blocks(page, "ini") if "[Interface]" in block]
    keys = []
    for _ in range(2):
        private = sh("wg", "genkey").strip()
        keys.append((private, sh("wg", "pubkey", input=private).strip()))
    with network(2) as net, ExitStack() as stack:
        for number, name in enumerate(net.hosts):
            other = 1 - number
            device = f"wg{name}"
            conf = text.replace("PRIVATE-KEY-OF-B", keys[number][0])
            conf = conf.replace("PUBLIC-KEY-OF-A", keys[other][1])
            conf = conf.replace("10.9.0.1/32", f"10.9.0.{other + 1}/32")
            # Only wg-quick understands these lines; ip does the same below.
            lines = [line for line in conf.splitlines() if not line.startswith(("Address", "MTU"))]
            if number == 0:
                lines.append("Endpoint = 10.77.1.2:51820")
            file = tmp_path / f"{device}.conf"
            file.write_text("\n".join(lines) + "\n")
            inside = ("ip", "netns", "exec", name)
            daemon = subprocess.Popen(
                [*inside, "wireguard-go", "--foreground", device], stdout=subprocess.DEVNULL, stderr=2
            )
            stack.callback(daemon.wait)
            stack.callback(daemon.kill)
            wait_until(Path(f"/var/run/wireguard/{device}.sock").exists, timeout=PATIENCE_S)
            sh(*inside, "wg", "setconf", device, str(file))
            sh("ip", "-n", name, "addr", "add", f"10.9.0.{number + 1}/24", "dev", device)
            sh("ip", "-n", name, "link", "set", device, "mtu", "1420", "up")
        config = unicast("10.9.0.2").replace("integrity = true", "mtu_bytes = 1376")
        here, there = (host_factory.host(name, config) for name in net.hosts)
        start_drivers(stack, (here, there), wait_until)
        stack.enter_context(there.role("bridge", "--direction", "receive"))
        stack.enter_context(here.role("bridge"))
        viewer = stack.enter_context(there.viewer())
        stack.enter_context(here.camera())
        receive_frames(viewer, 50)
        wait_until(lambda: there.is_balanced(50), timeout=PATIENCE_S)
        # Only the tunnel uses the link.
        assert_only_port(net.hosts[1], 51820)


def assert_only_port(host: str, port: int) -> None:
    """Checks that every UDP datagram received on the link is for that port."""
    script = """
import socket, sys, time
sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
sniffer.bind(("wire", 0x0800))
sniffer.settimeout(1)
ports, end = set(), time.monotonic() + 2
while time.monotonic() < end:
    packet = sniffer.recv(65536)
    head = (packet[0] & 15) * 4
    if packet[9] == 17:
        ports.add(int.from_bytes(packet[head + 2 : head + 4], "big"))
print(sorted(ports))
"""
    assert sh("ip", "netns", "exec", host, sys.executable, "-c", script).strip() == f"[{port}]"
