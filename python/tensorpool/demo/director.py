"""Starts the processes of the demo, shows them at work, and joins their ledgers."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from ..transport import MediaDriver
from .cast import Player
from .reports import Role
from .tables import ledger_table, live_table

_START_TIMEOUT_S = 30.0
_STREAM_ID = 10_000


def run(*, seconds: float, fps: int, as_json: bool) -> bool:
    """True if every frame is accounted for."""
    console = Console(stderr=as_json)
    with ExitStack() as stack:
        base = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix=f"tensorpool-demo-{os.getpid()}-", dir="/dev/shm")
            )
        )
        driver = stack.enter_context(MediaDriver(f"/dev/shm/aeron-tensorpool-demo-{os.getpid()}"))
        console.print(f"media driver in {driver.aeron_dir}\nregions below {base}")

        role = Role(driver.aeron_dir, base, _STREAM_ID, seconds, fps)

        def start(name: str, module: str, role: Role) -> Player:
            player = Player(name, module, role)
            stack.callback(player.end)
            return player

        camera = start("camera", "camera", role)
        # The model takes longer for a frame than the camera does: it asks for the newest, and misses the
        # others, without holding anyone up.
        slow = replace(role, work_s=3.0 / fps, policy="latest")
        viewers = [start("viewer", "viewer", role), start("slow model", "viewer", slow)]
        for player in (camera, *viewers):
            player.wait_for("ready", _START_TIMEOUT_S)
        camera.tell()
        if _watch(console, camera, viewers, seconds):
            camera.tell("stop")
        filmed = camera.wait_for("ledger", _START_TIMEOUT_S)
        for viewer in viewers:
            viewer.tell()
        seen = {viewer.name: viewer.wait_for("ledger", _START_TIMEOUT_S) for viewer in viewers}
        camera.tell()
    return _judge(console, filmed, seen, as_json)


def _watch(console: Console, camera: Player, viewers: list[Player], seconds: float) -> bool:
    """Shows the table until the camera is done. True if the user stopped it."""
    deadline = time.monotonic() + seconds + _START_TIMEOUT_S
    try:
        with Live(live_table(camera, viewers), console=console, refresh_per_second=4) as live:
            while camera.heard("ledger") is None and time.monotonic() < deadline:
                time.sleep(0.1)
                for player in (camera, *viewers):
                    player.check_alive()
                live.update(live_table(camera, viewers))
        console.print()
    except KeyboardInterrupt:
        return True
    return False


def _judge(console: Console, filmed: dict[str, Any], seen: dict[str, dict[str, Any]], as_json: bool) -> bool:
    faults = []
    if not filmed["balanced"] or filmed["committed"] != filmed["published"] + sum(
        filmed["unpublished"].values()
    ):
        faults.append("the camera's frames do not add up")
    for name, ledger in seen.items():
        if ledger["torn"]:
            faults.append(f"the {name} saw {ledger['torn']} torn frames")
        if not ledger["balanced"]:
            faults.append(f"the {name}'s frames do not add up")
        if ledger["span"] != filmed["committed"]:
            faults.append(f"the {name} accounts for {ledger['span']} of {filmed['committed']} frames")
    if as_json:
        result = {"camera": _figures(filmed), **{n: _figures(s) for n, s in seen.items()}, "faults": faults}
        json.dump(result, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        console.print(ledger_table(filmed, seen))
        for fault in faults:
            console.print(f"✗ {fault}", style="bold red")
        if not faults:
            console.print("✓ every frame is accounted for, none was torn", style="bold green")
    return not faults


def _figures(report: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in report.items() if key not in ("kind", "at")}
