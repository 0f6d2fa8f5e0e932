"""Hosts as network namespaces on one machine; tests skip where namespaces are not permitted."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commandline import CommandLine

PATIENCE_S = 60
CLOCK_S = 1_000_000
"""Offset of the monotonic clock of a host in a time namespace."""

CAMERA = """
import numpy as np, sys, time, tensorpool as tp
with tp.open("driver", connect_timeout=60) as ctx, ctx.producer(10000, pools=["64KiB"], nslots=64) as camera:
    while True:
        camera.offer(np.full(50_000, camera.next_seq % 251, np.uint8))
        time.sleep(0.005)
"""

VIEWER = """
import json, sys, time, tensorpool as tp
with tp.open("driver", connect_timeout=60) as ctx, ctx.consumer(20000) as frames:
    print("ready", flush=True)
    while True:
        frame = frames.receive(120)
        right = bool((frame.copy() == frame.seq % 251).all())
        print(json.dumps({"seq": frame.seq, "right": right, "now": time.monotonic()}), flush=True)
"""


def sh(*command: str, **options: Any) -> str:
    result = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=PATIENCE_S, **options
    )
    return result.stdout


def namespaces_fault() -> str | None:
    """Why namespaces cannot be created here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces require root"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "ip or unshare is not installed"
    trial = subprocess.run(
        ["unshare", "-n", "-T", "--monotonic", "1", "true"],
        check=False,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    return None if trial.returncode == 0 else "network or time namespaces are not permitted here"


@dataclass(frozen=True)
class Network:
    """Namespaces that are connected by a switch. The first host is 10.77.1.1."""

    hosts: tuple[str, ...]

    def disconnect(self, host: int = 0) -> None:
        sh("ip", "-n", self.hosts[host], "link", "set", "wire", "down")

    def reconnect(self, host: int = 0) -> None:
        sh("ip", "-n", self.hosts[host], "link", "set", "wire", "up")
        self._route_multicast(self.hosts[host])

    @staticmethod
    def _route_multicast(name: str) -> None:
        sh("ip", "-n", name, "route", "replace", "224.0.0.0/4", "dev", "wire")


@contextmanager
def network(count: int) -> Iterator[Network]:
    if (reason := namespaces_fault()) is not None:
        pytest.skip(reason)
    suffix = secrets.token_hex(3)
    names, switch = tuple(f"tp{n}{suffix}" for n in range(count)), f"tps{suffix}"
    with ExitStack() as stack:
        for name in (*names, switch):
            sh("ip", "netns", "add", name)
            stack.callback(sh, "ip", "netns", "del", name)
        try:
            # Without a querier a switch with multicast snooping forwards to no port.
            sh("ip", "-n", switch, "link", "add", "hub", "type", "bridge", "mcast_snooping", "0")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"a switch cannot be created here: {error.stderr}")
        sh("ip", "-n", switch, "link", "set", "hub", "up")
        for number, name in enumerate(names, start=1):
            port = f"port{number}"
            sh("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "wire", "netns", name)
            sh("ip", "-n", switch, "link", "set", port, "master", "hub", "up")
            sh("ip", "-n", name, "addr", "add", f"10.77.1.{number}/24", "dev", "wire")
            for device in ("wire", "lo"):
                sh("ip", "-n", name, "link", "set", device, "up")
            Network._route_multicast(name)
        yield Network(names)


@dataclass(frozen=True)
class NamespaceHost:
    """A host in a namespace, and the programs that run there."""

    prefix: tuple[str, ...]
    line: CommandLine
    config: Path

    @contextmanager
    def runs(self, *command: str, **streams: Any) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [*self.prefix, sys.executable, *command], env=self.line.environment(), text=True, **streams
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def role(self, *arguments: str) -> Any:
        return self.runs("-m", "tensorpool", *arguments, "--config", str(self.config))

    def viewer(self) -> Any:
        return self.runs("-c", VIEWER, stdout=subprocess.PIPE)

    def camera(self) -> Any:
        return self.runs("-c", CAMERA)

    def status(self) -> dict[str, Any] | None:
        command = [sys.executable, "-m", "tensorpool", "bridge", "status", "--json"]
        result = subprocess.run(
            [*self.prefix, *command],
            env=self.line.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        if result.returncode:
            return None
        row: dict[str, Any] = json.loads(result.stdout)["mappings"][0]
        return row

    def is_balanced(self, min_delivered: int) -> bool:
        """Whether the joined ledger counts every frame."""
        row = self.status()
        if row is None or row["ledger"] is None:
            return False
        ledger = row["ledger"]
        return bool(
            ledger["delivered"] > min_delivered
            and ledger["exact"]
            and ledger["dropped"]["network"] >= 0
            and ledger["published"] == ledger["delivered"] + sum(ledger["dropped"].values())
        )


@dataclass(frozen=True)
class HostFactory:
    """Creates hosts."""

    aeron_dir: Path
    shm_base: Path
    tmp_path: Path

    def host(self, name: str, config: str, *, own_clock: bool = False) -> NamespaceHost:
        """A host with its own configuration, and its own clock on request."""
        base, state = self.shm_base / name, self.tmp_path / f"state-{name}"
        base.mkdir(mode=0o700)
        state.mkdir(mode=0o700)
        file = self.tmp_path / f"{name}.toml"
        file.write_text(config)
        more = {"XDG_STATE_HOME": str(state), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        line = CommandLine(Path(f"{self.aeron_dir}-{name}"), base, more)
        clock = ("unshare", "-T", "--monotonic", str(CLOCK_S), "--fork", "--kill-child")
        prefix = ("ip", "netns", "exec", name, *(clock if own_clock else ()))
        return NamespaceHost(prefix, line, file)


def receive_frames(viewer: subprocess.Popen[str], count: int, after: int = -1) -> list[dict[str, Any]]:
    """The next frames behind a sequence; checks their content."""
    assert viewer.stdout is not None
    frames: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(frames) < count:
        assert time.monotonic() < deadline, frames
        text = viewer.stdout.readline()
        assert text, "the viewer process has ended"
        if text.startswith("{") and (frame := json.loads(text))["seq"] > after:
            assert frame["right"], frame
            frames.append(frame)
    return frames
