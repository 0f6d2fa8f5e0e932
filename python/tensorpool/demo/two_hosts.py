"""`tensorpool demo --hosts 2`: a camera on one host, a viewer and a recorder on another, and a bridge.

The hosts are two processes with a media driver, a driver and memory each, in network namespaces of their own
where that is permitted. The ledger joins what all of them counted.

The network between the two hosts of the demo: two network namespaces and a wire, where that is permitted;
else the loopback of this machine. At the end nothing of it is left.
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
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from .checks import RecordingCheck, look_at
from .host import DEST, Name, Place
from .processes import FRAME_BYTES, ChildProcess, EarlyStop, early_stop

_PORTS: Final = (40100, 40101, 40102)
_ADDRESSES: Final = ("10.78.0.1", "10.78.0.2")
_WAYS: Final = ("payload_channel", "control_channel", "metadata_channel")


@dataclass(frozen=True, slots=True)
class DemoNetwork:
    """How a program is started on each host, and the channels that the second receives on."""

    prefixes: tuple[tuple[str, ...], tuple[str, ...]]
    channels: dict[str, str]
    words: str


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


def make_network(stack: ExitStack) -> DemoNetwork:
    """Namespaces if they can be made; what was made is removed with the stack."""
    if os.geteuid() == 0 and shutil.which("ip") is not None:
        with ExitStack() as own:
            try:
                made = _namespaces(own)
            except (subprocess.SubprocessError, OSError):
                pass
            else:
                stack.push(own.pop_all())
                return made
    channels = {way: f"aeron:udp?endpoint=127.0.0.1:{port}" for way, port in zip(_WAYS, _free(), strict=True)}
    return DemoNetwork(((), ()), channels, "two media drivers on loopback; as root: two network namespaces")


def _namespaces(stack: ExitStack) -> DemoNetwork:
    mark = secrets.token_hex(3)
    names = (f"tpc{mark}", f"tpl{mark}")
    for name in names:
        _ip("netns", "add", name)
        stack.callback(_ip, "netns", "del", name)
    _ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
    for name, address in zip(names, _ADDRESSES, strict=True):
        _ip("link", "set", name, "netns", name, "name", "wire")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "wire")
        for device in ("wire", "lo"):
            _ip("-n", name, "link", "set", device, "up")
    channels = {
        way: f"aeron:udp?endpoint={_ADDRESSES[1]}:{port}" for way, port in zip(_WAYS, _PORTS, strict=True)
    }
    first, second = (("ip", "netns", "exec", name) for name in names)
    return DemoNetwork((first, second), channels, "two network namespaces with a wire between them")


def _free() -> list[int]:
    """UDP ports that nobody has at the moment."""
    with ExitStack() as stack:
        ports = []
        for _ in _WAYS:
            one = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            one.bind(("127.0.0.1", 0))
            ports.append(int(one.getsockname()[1]))
        return ports


_UP_S: Final = 60.0
_SETTLE_S: Final = 30.0
_QUIET_S: Final = 0.6


def run(*, seconds: float, fps: int, as_json: bool) -> bool:
    """True if every frame is accounted for, and none had a wrong byte."""
    with early_stop() as asked, ExitStack() as stack:
        wire = make_network(stack)
        if not as_json:
            click.echo(f"two hosts ({wire.words}), a bridge between them: filming…", err=True)
        result = _Film(stack, wire, seconds, fps, asked).shot()
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _tell(result)
    return bool(result["adds_up"])


def _tell(result: dict[str, Any]) -> None:
    dropped, recorded = result["dropped"], result["recorder"]
    click.echo(
        f"published {result['published']} = delivered {result['delivered']} + dropped by the sender "
        f"{dropped['sender']}, the network {dropped['network']}, the receiver {dropped['receiver']}"
    )
    click.echo(
        f"the viewer on the other host saw {result['seen']} frames of {FRAME_BYTES / 1024:.0f} KiB, "
        f"{result['wrong']} of them with a wrong byte; {result['rate_mib']:.0f} MiB/s"
    )
    click.echo(
        f"the recorder there has {recorded['rows']} of them and {recorded['missing']} gaps; "
        f"{recorded['torn']} torn"
    )
    for path in result["whole_system"]:
        lost = (
            ", ".join(f"{reason} {count}" for reason, count in path["dropped"].items() if count) or "nothing"
        )
        click.echo(
            f"  stream {path['stream_id']}, {path['path']}: published {path['published']}, delivered "
            f"{path['delivered']}, dropped {lost}: {path['verdict']}"
        )
    for fault in result["faults"]:
        click.echo(f"does not add up: {fault}", err=True)


class _Film:
    """Both hosts, and what happens on them."""

    def __init__(
        self, stack: ExitStack, wire: DemoNetwork, seconds: float, fps: int, asked: EarlyStop
    ) -> None:
        memory = tempfile.TemporaryDirectory(prefix=f"tensorpool-demo-{os.getpid()}-", dir="/dev/shm")
        disk = tempfile.TemporaryDirectory(prefix=f"tensorpool-demo-{os.getpid()}-")
        base = Path(stack.enter_context(memory))
        self.recording = Path(stack.enter_context(disk)) / "recording"
        self._seconds, self._asked, self._namespaces = seconds, asked, bool(wire.prefixes[0])
        players = []
        names: tuple[Name, Name] = ("camera", "lab")
        for name, prefix in zip(names, wire.prefixes, strict=True):
            at = base / name
            at.mkdir(mode=0o700)
            place = Place(name, str(at), str(self.recording), wire.channels, seconds, fps)
            # Locks and epoch marks go there too: the demo touches nothing of the user's.
            environment = {**os.environ, "XDG_STATE_HOME": str(at / "state")}
            player = ChildProcess(f"{name}'s host", "host", place, environment, prefix=prefix)
            stack.callback(player.end)
            stack.callback(asked.closing)
            players.append(player)
        self._camera, self._lab = players

    def shot(self) -> dict[str, Any]:
        """Films, and joins the books when all is told."""
        self._lab.wait_for("there", _UP_S)
        epoch = self._camera.wait_for("ready", _UP_S)["epoch"]
        self._lab.wait_for(f"mapped-{epoch}", _UP_S)
        began = time.monotonic()
        self._camera.tell()
        while self._camera.heard("ledger") is None:
            self._camera.check_alive()
            self._lab.check_alive()
            if self._asked:
                self._camera.tell("enough")
                break
            time.sleep(0.02)
        camera = self._camera.wait_for("ledger", self._seconds + _UP_S)
        elapsed = time.monotonic() - began
        self._settle(camera["committed"])
        self._lab.tell("enough")
        lab = self._lab.wait_for("ledger", _UP_S)
        self._camera.tell("enough")
        camera |= self._camera.wait_for("whole", _UP_S)
        return self._books(camera, lab, look_at(self.recording, DEST, []), elapsed)

    def _settle(self, committed: int) -> None:
        """Until the other end has the account of the last frame, and nothing is on the way."""
        deadline = time.monotonic() + _SETTLE_S
        before, since = None, time.monotonic()
        while (now := time.monotonic()) < deadline:
            sample = self._lab.sample()
            standing = (sample.get("ledger"), sample.get("frames"), sample.get("rows"))
            if standing != before:
                before, since = standing, now
            is_told = (sample.get("ledger") or {}).get("published") == committed
            if is_told and now - since > _QUIET_S:
                break
            self._lab.check_alive()
            time.sleep(0.05)

    def _books(
        self, camera: dict[str, Any], lab: dict[str, Any], found: RecordingCheck, elapsed: float
    ) -> dict[str, Any]:
        ledger = lab["bridge"]
        recorded = {
            "rows": sum(one["rows"] for one in lab["recorder"]),
            "missing": sum(sum(one["gaps"].values()) for one in lab["recorder"]),
            "torn": found.torn,
            "problems": found.problems,
        }
        faults = list(_faults(camera, lab, recorded))
        return {
            **ledger,
            "committed": camera["committed"],
            "seen": lab["seen"],
            "wrong": lab["wrong"],
            "viewer": lab["viewer"],
            "recorder": recorded,
            "whole_system": camera["paths"] + lab["paths"],
            "namespaces": self._namespaces,
            "rate_mib": ledger["delivered"] * FRAME_BYTES / elapsed / (1 << 20),
            "faults": faults,
            "adds_up": not faults,
        }


def _faults(camera: dict[str, Any], lab: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    """Nothing, if every frame is somewhere and only there."""
    ledger, viewer = lab["bridge"], lab["viewer"]
    dropped = ledger["dropped"]
    checks = {
        "the bridge's account is not exact": ledger["exact"],
        "frames that the camera made and the bridge has not heard of": (
            ledger["published"] == camera["committed"] and camera["balanced"]
        ),
        "published is not delivered + dropped": (
            ledger["published"] == ledger["delivered"] + sum(dropped.values()) and dropped["network"] >= 0
        ),
        "the viewer's ledger": viewer["balanced"] and lab["seen"] == viewer["received"],
        "frames that were delivered and neither seen nor dropped by the viewer": (
            lab["seen"] + sum(viewer["dropped"].values()) == viewer["span"]
            and viewer["span"] >= ledger["delivered"] >= lab["seen"]
        ),
        "the recorder's ledger": all(one["balanced"] for one in lab["recorder"]),
        "the recorder's span is another than the viewer's": (
            recorded["rows"] + recorded["missing"] == viewer["span"]
        ),
        "frames with a wrong byte": lab["wrong"] == recorded["torn"] == 0 and not recorded["problems"],
    }
    found = [what for what, holds in checks.items() if not holds]
    return found + [fault for host in (camera, lab) for fault in host["faults"]]
