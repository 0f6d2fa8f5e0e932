"""Hosts as network namespaces, one of them with a monotonic clock of its own: real UDP over wires that can be
cut, one to one and one to many. Skipped where namespaces are not permitted."""

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
from tests.e2e.namespaces import CLOCK_S, TIMEOUT_S, Host, HostFactory, network, seen, sh
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
    for left in aeron_dir.parent.glob(f"{aeron_dir.name}-*"):
        leaks.remove(left)


def start_drivers(
    stack: ExitStack, machines: tuple[Host, ...], wait_until: Callable[..., Any]
) -> list[ExitStack]:
    """A driver on each; what ends it."""
    ends = []
    for machine in machines:
        one = stack.enter_context(ExitStack())
        one.enter_context(machine.role("driver"))
        # Whoever attaches needs it; there is no ready file that both clocks would agree on.
        wait_until((machine.line.aeron_dir / "cnc.dat").exists, timeout=TIMEOUT_S)
        ends.append(one)
    return ends


def unicast(address: str, **more: str) -> str:
    channels = {way: f"aeron:udp?endpoint={address}:{port}" for way, port in PORTS.items()}
    return CONFIG.format(**channels, more=METADATA.format(address=address) + "\nintegrity = true", **more)


def test_frames_cross_between_namespaces_with_other_clocks_and_after_a_cut(
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
        first = seen(viewer, 20)
        assert first[0]["now"] - time.monotonic() > CLOCK_S / 2, "the other host has another clock"
        net.disconnect()
        time.sleep(1.0)
        net.reconnect()
        seen(viewer, 20, after=first[-1]["seq"] + 150)
        wait_until(lambda: there.adds_up(40), timeout=TIMEOUT_S)


def to_group(host: int) -> dict[str, str]:
    """Multicast: the same at every end."""
    del host
    return {
        way: f"aeron:udp?endpoint=224.20.30.39:{port}|interface=10.77.1.0/24" for way, port in PORTS.items()
    }


def to_each(host: int) -> dict[str, str]:
    """Multi-destination: the sender has a control address, and receivers come to it."""
    own = "" if host == 1 else f"endpoint=10.77.1.{host}:{{port}}|"
    return {
        way: f"aeron:udp?{own.format(port=port)}control=10.77.1.1:{port}|control-mode=dynamic"
        for way, port in PORTS.items()
    }


@pytest.mark.parametrize("channels", [to_group, to_each])
def test_one_sender_serves_two_hosts_and_each_has_its_own_account(
    host_factory: HostFactory, wait_until: Callable[..., Any], channels: Callable[[int], dict[str, str]]
):
    with network(3) as net, ExitStack() as stack:
        machines = tuple(
            host_factory.host(
                name,
                CONFIG.format(**channels(number), more="forward_metadata = false"),
                own_clock=number == 3,
            )
            for number, name in enumerate(net.hosts, start=1)
        )
        here, *others = machines
        start_drivers(stack, machines, wait_until)
        for machine in others:
            stack.enter_context(machine.role("bridge", "--direction", "receive"))
        viewers = [stack.enter_context(machine.viewer()) for machine in others]
        stack.enter_context(here.role("bridge"))
        stack.enter_context(here.camera())
        first = [seen(viewer, 20)[-1]["seq"] for viewer in viewers]
        # One of the two is cut off: the other goes on, and the one comes back.
        net.disconnect(2)
        seen(viewers[0], 20, after=first[0] + 200)
        net.reconnect(2)
        seen(viewers[1], 20, after=first[1] + 400)
        for machine in others:
            wait_until(lambda machine=machine: machine.adds_up(40), timeout=TIMEOUT_S)


@pytest.mark.parametrize("end", ["sender", "receiver", "the camera's driver", "the other driver"])
def test_whoever_dies_comes_back_without_help(
    host_factory: HostFactory, wait_until: Callable[..., Any], end: str
):
    with network(2) as net, ExitStack() as stack:
        here, there = (host_factory.host(name, unicast("10.77.1.2")) for name in net.hosts)
        ends: dict[str, tuple[Host, tuple[str, ...]]] = {
            "the camera's driver": (here, ("driver",)),
            "the other driver": (there, ("driver",)),
            "receiver": (there, ("bridge", "--direction", "receive")),
            "sender": (here, ("bridge",)),
        }
        lives: dict[str, ExitStack] = {}
        for name, (machine, words) in ends.items():
            lives[name] = stack.enter_context(ExitStack())
            lives[name].enter_context(machine.role(*words))
            wait_until((machine.line.aeron_dir / "cnc.dat").exists, timeout=TIMEOUT_S)
        viewer = stack.enter_context(there.viewer())
        camera = stack.enter_context(ExitStack())
        camera.enter_context(here.camera())
        first = seen(viewer, 20)
        # SIGKILL; the media driver is the driver's own, and goes with it.
        lives[end].close()
        machine, words = ends[end]
        stack.enter_context(machine.role(*words))
        # Sequences of another epoch may begin anew.
        assert len(seen(viewer, 200)) == 200 > len(first)
        camera.close()
        ledger, sent = wait_until(lambda: settled(here, there, end != "receiver"), timeout=TIMEOUT_S)
        assert ledger["exact"]
        assert ledger["published"] == ledger["delivered"] + sum(ledger["dropped"].values())
        assert ledger["whole"] == ("driver" in end)
        if end == "receiver":
            assert 0 < ledger["published"] <= sent["published"], "from the place that both know"
        else:
            assert ledger["dropped"]["sender"] == sum(sent["dropped"].values())
        if "driver" not in end:
            # With a media driver go the datagrams that it had not sent, or not handed over.
            assert ledger["dropped"]["network"] == 0


def settled(here: Host, there: Host, is_of_all: bool) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The account at both ends, once all has been told and nothing changes any more. `is_of_all`: of all that
    the sender has counted."""
    before, sent = there.status(), here.status()
    time.sleep(1.5)
    after = there.status()
    if before is None or after is None or sent is None or after["ledger"] is None:
        return None
    ledger: dict[str, Any] = after["ledger"]
    is_told = ledger["published"] == sent["published"] if is_of_all else ledger["dropped"]["network"] == 0
    is_same = ledger == before["ledger"] and sent == here.status()
    return (ledger, sent) if is_told and is_same else None


def test_the_recipe_with_wireguard_hides_everything(
    host_factory: HostFactory, wait_until: Callable[..., Any], tmp_path: Path
):
    """As the page has it, with a userspace WireGuard; `wg-quick` is what `ip` and `wg` do here."""
    for tool in ("wg", "wireguard-go"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    page = ROOT / "docs" / "how-to" / "connect-two-hosts.md"
    [text] = [one for one in blocks(page, "ini") if "[Interface]" in one]
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
            # What only wg-quick understands is done by ip below.
            lines = [one for one in conf.splitlines() if not one.startswith(("Address", "MTU"))]
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
            wait_until(Path(f"/var/run/wireguard/{device}.sock").exists, timeout=TIMEOUT_S)
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
        seen(viewer, 50)
        wait_until(lambda: there.adds_up(50), timeout=TIMEOUT_S)
        # On the wire there is nothing but the tunnel: with its port closed, nothing gets through.
        assert_only_port(net.hosts[1], 51820)


def assert_only_port(host: str, port: int) -> None:
    """Every UDP datagram that comes in over the wire is for that port."""
    script = """
import socket, sys, time
ear = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
ear.bind(("wire", 0x0800))
ear.settimeout(1)
ports, end = set(), time.monotonic() + 2
while time.monotonic() < end:
    packet = ear.recv(65536)
    head = (packet[0] & 15) * 4
    if packet[9] == 17:
        ports.add(int.from_bytes(packet[head + 2 : head + 4], "big"))
print(sorted(ports))
"""
    assert sh("ip", "netns", "exec", host, sys.executable, "-c", script).strip() == f"[{port}]"
