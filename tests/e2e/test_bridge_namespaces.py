"""Two hosts as network namespaces, one of them with a monotonic clock of its own: real UDP over a wire that
can be cut. Skipped where namespaces are not permitted."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commandline import CommandLine

pytestmark = [
    pytest.mark.long,
    pytest.mark.leaves_files("processes in a time namespace are killed, their drivers with them"),
]
PATIENCE_S = 60
CLOCK_S = 1_000_000

CONFIG = """
[bridge]
instance_id = "between-namespaces"
payload_channel = "aeron:udp?endpoint=10.77.1.2:40100"
control_channel = "aeron:udp?endpoint=10.77.1.2:40101"
metadata_channel = "aeron:udp?endpoint=10.77.1.2:40102"
integrity = true

[[bridge.mappings]]
source_stream_id = 10000
dest_stream_id = 20000

[driver]
any_stream = true
"""

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


def sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_S)


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "ip or unshare is not installed"
    tried = subprocess.run(
        ["unshare", "-n", "-T", "--monotonic", "1", "true"],
        check=False,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    return None if tried.returncode == 0 else "network or time namespaces are not permitted here"


@dataclass(frozen=True)
class Wire:
    """Two namespaces and the wire between them."""

    here: str
    there: str

    def cut(self) -> None:
        sh("ip", "netns", "exec", self.here, "ip", "link", "set", "wire", "down")

    def mend(self) -> None:
        sh("ip", "netns", "exec", self.here, "ip", "link", "set", "wire", "up")


@pytest.fixture
def wire() -> Iterator[Wire]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    mark = secrets.token_hex(3)
    names = [f"tpa{mark}", f"tpb{mark}"]
    with ExitStack() as stack:
        for name in names:
            sh("ip", "netns", "add", name)
            stack.callback(sh, "ip", "netns", "del", name)
        sh("ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1])
        for number, name in enumerate(names, start=1):
            sh("ip", "link", "set", name, "netns", name, "name", "wire")
            sh("ip", "netns", "exec", name, "ip", "addr", "add", f"10.77.1.{number}/24", "dev", "wire")
            for device in ("wire", "lo"):
                sh("ip", "netns", "exec", name, "ip", "link", "set", device, "up")
        yield Wire(*names)


@dataclass(frozen=True)
class Machine:
    """Programs of one namespace."""

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

    def role(self, *words: str) -> Any:
        return self.runs("-m", "tensorpool", *words, "--config", str(self.config))

    def status(self) -> dict[str, Any] | None:
        command = [sys.executable, "-m", "tensorpool", "bridge", "status", "--json"]
        done = subprocess.run(
            [*self.prefix, *command],
            env=self.line.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        return None if done.returncode else json.loads(done.stdout)["mappings"][0]


@pytest.fixture
def machines(wire: Wire, aeron_dir: Path, shm_base: Path, tmp_path: Path) -> tuple[Machine, Machine]:
    config = tmp_path / "bridge.toml"
    config.write_text(CONFIG)
    made = []
    clock = ("unshare", "-T", "--monotonic", str(CLOCK_S), "--fork", "--kill-child")
    for name, extra in ((wire.here, ()), (wire.there, clock)):
        base, state = shm_base / name, tmp_path / f"state-{name}"
        base.mkdir(mode=0o700)
        state.mkdir(mode=0o700)
        line = CommandLine(
            Path(f"{aeron_dir}-{name}"),
            base,
            {"XDG_STATE_HOME": str(state), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )
        made.append(Machine(("ip", "netns", "exec", name, *extra), line, config))
    return made[0], made[1]


def seen(viewer: subprocess.Popen[str], count: int, after: int = -1) -> list[dict[str, Any]]:
    """The next frames beyond a sequence."""
    assert viewer.stdout is not None
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, found
        text = viewer.stdout.readline()
        assert text, "the viewer has ended"
        if text.startswith("{") and (one := json.loads(text))["seq"] > after:
            found.append(one)
    return found


def test_frames_cross_between_namespaces_with_other_clocks_and_after_a_cut(
    wire: Wire, machines: tuple[Machine, Machine], wait_until: Callable[..., Any]
):
    here, there = machines
    with ExitStack() as stack:
        for machine in (here, there):
            stack.enter_context(machine.role("driver"))
            # Whoever attaches needs it; there is no ready file that both clocks would agree on.
            wait_until((machine.line.aeron_dir / "cnc.dat").exists, timeout=PATIENCE_S)
        stack.enter_context(there.role("bridge", "--direction", "receive"))
        stack.enter_context(here.role("bridge"))
        viewer = stack.enter_context(there.runs("-c", VIEWER, stdout=subprocess.PIPE))
        stack.enter_context(here.runs("-c", CAMERA))
        first = seen(viewer, 20)
        assert all(one["right"] for one in first)
        assert first[0]["now"] - time.monotonic() > CLOCK_S / 2, "the other host has another clock"
        wire.cut()
        time.sleep(1.0)
        wire.mend()
        later = seen(viewer, 20, after=first[-1]["seq"] + 150)
        assert all(one["right"] for one in later)

        def adds_up() -> bool:
            found = there.status()
            if found is None or found["ledger"] is None:
                return False
            ledger = found["ledger"]
            return bool(
                ledger["delivered"] > 40
                and ledger["dropped"]["network"] >= 0
                and ledger["published"] == ledger["delivered"] + sum(ledger["dropped"].values())
            )

        wait_until(adds_up, timeout=PATIENCE_S)
