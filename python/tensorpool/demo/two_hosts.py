"""`tensorpool demo --hosts 2`: a camera on one host, a viewer and a recorder on another, and a bridge.

Each host is a process with a media driver, a driver and memory of its own. The network between them is two
network namespaces with a cable where that is permitted, else the loopback of this machine; it is removed at
the end. The ledger joins the counts of both hosts.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click

from ..bridge.service import JoinedLedgerReply
from ..monitor.ledger import LedgerRowJson
from .checks import RecordingCheck, check_recording
from .host import DEST, HostName, HostOptions
from .processes import FRAME_BYTES, ChildProcess, EarlyStop, early_stop
from .reports import CameraLedger, CameraReady, HostLedger, LabLedger, LabSample, Mapped, Ready, ViewerLedger

_PORTS: Final = (40100, 40101, 40102)
_ADDRESSES: Final = ("10.78.0.1", "10.78.0.2")
_CHANNELS: Final = ("payload_channel", "control_channel", "metadata_channel")
_READY_S: Final = 60.0
_SETTLE_S: Final = 30.0
_QUIET_S: Final = 0.6


@dataclass(frozen=True, slots=True)
class DemoNetwork:
    """The command prefix of each host, and the channels on which the second host receives."""

    prefixes: tuple[tuple[str, ...], tuple[str, ...]]
    channels: dict[str, str]
    description: str


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


def make_network(stack: ExitStack) -> DemoNetwork:
    """Creates network namespaces if that is permitted; the stack removes them."""
    if os.geteuid() == 0 and shutil.which("ip") is not None:
        with ExitStack() as own:
            try:
                network = _create_namespaces(own)
            except (subprocess.SubprocessError, OSError):
                pass
            else:
                stack.push(own.pop_all())
                return network
    channels = {
        name: f"aeron:udp?endpoint=127.0.0.1:{port}"
        for name, port in zip(_CHANNELS, _free_ports(), strict=True)
    }
    return DemoNetwork(((), ()), channels, "two media drivers on loopback; as root: two network namespaces")


def _create_namespaces(stack: ExitStack) -> DemoNetwork:
    suffix = secrets.token_hex(3)
    names = (f"tpc{suffix}", f"tpl{suffix}")
    for name in names:
        _ip("netns", "add", name)
        stack.callback(_ip, "netns", "del", name)
    _ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
    for name, address in zip(names, _ADDRESSES, strict=True):
        _ip("link", "set", name, "netns", name, "name", "cable")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
        for device in ("cable", "lo"):
            _ip("-n", name, "link", "set", device, "up")
    channels = {
        name: f"aeron:udp?endpoint={_ADDRESSES[1]}:{port}"
        for name, port in zip(_CHANNELS, _PORTS, strict=True)
    }
    first, second = (("ip", "netns", "exec", name) for name in names)
    return DemoNetwork((first, second), channels, "two network namespaces with a cable between them")


def _free_ports() -> list[int]:
    """UDP ports that are free at the moment."""
    with ExitStack() as stack:
        ports = []
        for _ in _CHANNELS:
            udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            udp.bind(("127.0.0.1", 0))
            ports.append(int(udp.getsockname()[1]))
        return ports


def run(*, seconds: float, fps: int, json_output: bool) -> bool:
    """Runs the demo. True if every frame is accounted for, and none has a wrong byte."""
    with early_stop() as stop, ExitStack() as stack:
        network = make_network(stack)
        if not json_output:
            click.echo(f"two hosts ({network.description}), a bridge between them: publishing…", err=True)
        result = _TwoHosts(stack, network, seconds, fps, stop).run()
    if json_output:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        _print_result(result)
    return not result.faults


@dataclass(frozen=True, slots=True)
class RecorderTotals:
    """The recording on the second host."""

    rows: int
    missing: int
    torn: int
    problems: list[str]


@dataclass(frozen=True, slots=True)
class TwoHostsResult:
    """The joined ledger of both hosts."""

    bridge: JoinedLedgerReply
    committed: int
    checked: int
    wrong: int
    viewer: ViewerLedger
    recorder: RecorderTotals
    whole_system: list[LedgerRowJson]
    """Every path on both hosts, as `tensorpool ledger --json` prints it."""
    has_namespaces: bool
    rate_mib: float
    faults: list[str]

    def to_json(self) -> Mapping[str, object]:
        """The demo's JSON output."""
        viewer = self.viewer
        return {
            **self.bridge,
            "committed": self.committed,
            "checked": self.checked,
            "wrong": self.wrong,
            "viewer": {
                "span": viewer.span,
                "received": viewer.received,
                "dropped": viewer.dropped,
                "balanced": viewer.balanced,
            },
            "recorder": asdict(self.recorder),
            "whole_system": self.whole_system,
            "namespaces": self.has_namespaces,
            "rate_mib": self.rate_mib,
            "faults": self.faults,
            "adds_up": not self.faults,
        }


def _print_result(result: TwoHostsResult) -> None:
    ledger, recorded = result.bridge, result.recorder
    dropped = ledger["dropped"]
    click.echo(
        f"published {ledger['published']} = delivered {ledger['delivered']} + dropped by the sender "
        f"{dropped['sender']}, the network {dropped['network']}, the receiver {dropped['receiver']}"
    )
    click.echo(
        f"the viewer on the other host checked {result.checked} frames of {FRAME_BYTES / 1024:.0f} KiB, "
        f"{result.wrong} of them with a wrong byte; {result.rate_mib:.0f} MiB/s"
    )
    click.echo(
        f"the recorder there has {recorded.rows} of them and {recorded.missing} gaps; {recorded.torn} torn"
    )
    for path in result.whole_system:
        reasons = ", ".join(f"{reason} {count}" for reason, count in path["dropped"].items() if count)
        click.echo(
            f"  stream {path['stream_id']}, {path['path']}: published {path['published']}, delivered "
            f"{path['delivered']}, dropped {reasons or 'nothing'}: {path['verdict']}"
        )
    for fault in result.faults:
        click.echo(f"does not add up: {fault}", err=True)


class _TwoHosts:
    """The processes of both hosts."""

    def __init__(
        self, stack: ExitStack, network: DemoNetwork, seconds: float, fps: int, stop: EarlyStop
    ) -> None:
        memory = tempfile.TemporaryDirectory(prefix=f"tensorpool-demo-{os.getpid()}-", dir="/dev/shm")
        disk = tempfile.TemporaryDirectory(prefix=f"tensorpool-demo-{os.getpid()}-")
        base = Path(stack.enter_context(memory))
        self.recording = Path(stack.enter_context(disk)) / "recording"
        self._seconds, self._stop, self._has_namespaces = seconds, stop, bool(network.prefixes[0])
        processes = []
        names: tuple[HostName, HostName] = ("camera", "lab")
        for name, prefix in zip(names, network.prefixes, strict=True):
            directory = base / name
            directory.mkdir(mode=0o700)
            options = HostOptions(name, str(directory), str(self.recording), network.channels, seconds, fps)
            # Locks and epoch marks are temporary too: the demo changes no file of the user.
            variables = {**os.environ, "XDG_STATE_HOME": str(directory / "state")}
            process = ChildProcess(f"{name}'s host", "host", options, variables, prefix=prefix)
            stack.callback(process.end)
            stack.callback(stop.closing)
            processes.append(process)
        self._camera, self._lab = processes

    def run(self) -> TwoHostsResult:
        """Publishes frames, and joins the ledgers when they have settled."""
        self._lab.wait_for(Ready, _READY_S)
        epoch = self._camera.wait_for(CameraReady, _READY_S).epoch
        self._lab.wait_for(Mapped, _READY_S, key=str(epoch))
        started = time.monotonic()
        self._camera.send()
        while self._camera.report(CameraLedger) is None:
            self._camera.check_alive()
            self._lab.check_alive()
            if self._stop:
                self._camera.send("stop")
                break
            time.sleep(0.02)
        camera = self._camera.wait_for(CameraLedger, self._seconds + _READY_S)
        elapsed_s = time.monotonic() - started
        self._settle(camera.committed)
        self._lab.send("stop")
        lab = self._lab.wait_for(LabLedger, _READY_S)
        self._camera.send("stop")
        host = self._camera.wait_for(HostLedger, _READY_S)
        check = check_recording(self.recording, DEST, [])
        return join_ledgers(
            camera, host, lab, check, elapsed_s=elapsed_s, has_namespaces=self._has_namespaces
        )

    def _settle(self, committed: int) -> None:
        """Waits until the receiver's ledger covers the last frame, and its counts no longer change."""
        deadline = time.monotonic() + _SETTLE_S
        before, unchanged_since = None, time.monotonic()
        while (now := time.monotonic()) < deadline:
            sample = self._lab.report(LabSample)
            counts = None if sample is None else (sample.ledger, sample.frames, sample.rows)
            if counts != before:
                before, unchanged_since = counts, now
            ledger = None if sample is None else sample.ledger
            is_complete = ledger is not None and ledger["published"] == committed
            if is_complete and now - unchanged_since > _QUIET_S:
                break
            self._lab.check_alive()
            time.sleep(0.05)


def join_ledgers(
    camera: CameraLedger,
    host: HostLedger,
    lab: LabLedger,
    check: RecordingCheck,
    *,
    elapsed_s: float,
    has_namespaces: bool,
) -> TwoHostsResult:
    """The ledger of both hosts, and why it does not add up. `host` is the camera's host. Pure."""
    recorder = RecorderTotals(
        rows=sum(epoch.rows for epoch in lab.recorder),
        missing=sum(sum(epoch.gaps.values()) for epoch in lab.recorder),
        torn=check.torn,
        problems=check.problems,
    )
    return TwoHostsResult(
        bridge=lab.bridge,
        committed=camera.committed,
        checked=lab.checked,
        wrong=lab.wrong,
        viewer=lab.viewer,
        recorder=recorder,
        whole_system=[*host.paths, *lab.paths],
        has_namespaces=has_namespaces,
        rate_mib=lab.bridge["delivered"] * FRAME_BYTES / elapsed_s / (1 << 20),
        faults=[*_faults(camera, lab, recorder), *host.faults, *lab.faults],
    )


def _faults(camera: CameraLedger, lab: LabLedger, recorder: RecorderTotals) -> list[str]:
    """Why not every frame is in exactly one place."""
    ledger, viewer = lab.bridge, lab.viewer
    dropped = ledger["dropped"]
    total_dropped = dropped["sender"] + dropped["network"] + dropped["receiver"]
    checks = {
        "the bridge's ledger is not exact": ledger["exact"],
        "frames that the camera committed and the bridge does not know": (
            ledger["published"] == camera.committed and camera.balanced
        ),
        "published is not delivered + dropped": (
            ledger["published"] == ledger["delivered"] + total_dropped and dropped["network"] >= 0
        ),
        "the viewer's ledger": viewer.balanced and lab.checked == viewer.received,
        "frames that were delivered and neither received nor dropped by the viewer": (
            lab.checked + sum(viewer.dropped.values()) == viewer.span
            and viewer.span >= ledger["delivered"] >= lab.checked
        ),
        "the recorder's ledger": all(epoch.balanced for epoch in lab.recorder),
        "the recorder's span differs from the viewer's": recorder.rows + recorder.missing == viewer.span,
        "frames with a wrong byte": lab.wrong == recorder.torn == 0 and not recorder.problems,
    }
    return [fault for fault, holds in checks.items() if not holds]
