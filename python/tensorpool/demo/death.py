"""The camera's death on purpose: what it had committed, who noticed when, and how all went on."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..shm.epoch_files import HEADER_RING
from ..shm.slots import read_ring
from .cast import DemoFailed, Player
from .scene import NSLOTS
from .stage import TIMEOUT_S, Stage

# How long after the last frame a viewer may still get its first.
_LAST_CALL_S = 1.0


@dataclass(frozen=True, slots=True)
class RingCount:
    """The truth about a dead writer, from the ring that it left."""

    committed: int
    half_written: int
    """Begun and never committed: no reader ever saw it."""


def count_ring(descriptor: int) -> RingCount:
    """Sequences start at 0 and leave none out, so that the newest says how many there were."""
    ring = read_ring(descriptor, NSLOTS, None)
    if problems := [problem for slot in ring.slots for problem in slot.problems]:
        raise DemoFailed(f"the ring of the killed camera is broken: {'; '.join(problems)}")
    newest = ring.newest_seq
    return RingCount(0 if newest is None else newest + 1, ring.count("in_progress"))


@dataclass(slots=True)
class Death:
    """One kill and what followed it. Times are from the kill on."""

    pid: int
    lease: str
    epoch: str
    lease_s: float
    """How long the lease would have lived on, had nobody noticed: its grace."""
    killed_ns: int
    ring: RingCount
    noticed_ms: float
    reason: str
    viewer_leases: dict[str, str | None]
    next_pid: int | None = None
    next_lease: str | None = None
    next_epoch: str | None = None
    back_ms: float | None = None
    told_ms: dict[str, float] = field(default_factory=dict)
    frames_again_ms: dict[str, float] = field(default_factory=dict)
    leases_kept: bool = False

    def after_ms(self, at_ns: int) -> float:
        return (at_ns - self.killed_ns) / 1e6

    def as_json(self) -> dict[str, Any]:
        return {
            "killed_process": self.pid,
            "lease_grace_s": self.lease_s,
            "noticed_by_driver_ms": self.noticed_ms,
            "driver_says": self.reason,
            "viewers_told_ms": self.told_ms,
            "camera_back_ms": self.back_ms,
            "viewers_have_frames_again_ms": self.frames_again_ms,
            "viewers_kept_their_leases": self.leases_kept,
            "camera_lease": [self.lease, self.next_lease],
            "epoch": [self.epoch, self.next_epoch],
        }


def kill_camera(stage: Stage) -> Death:
    """Kills the camera and waits until the driver has noticed."""
    camera = stage.camera
    ready = camera.wait_for("ready", TIMEOUT_S)
    # Opened before: the driver keeps a superseded directory for the grace, and this machine may stall.
    descriptor = os.open(_directory(stage.driver, ready["epoch"]) / HEADER_RING, os.O_RDONLY | os.O_CLOEXEC)
    try:
        killed_ns = time.monotonic_ns()
        camera.kill()
        ring = count_ring(descriptor)
    finally:
        os.close(descriptor)
    ended = stage.driver.wait_for(f"ended-{ready['lease']}", TIMEOUT_S)
    return Death(
        pid=camera.pid,
        lease=ready["lease"],
        epoch=ready["epoch"],
        lease_s=stage.driver.wait_for("ready", TIMEOUT_S)["lease_s"],
        killed_ns=killed_ns,
        ring=ring,
        noticed_ms=(ended["noticed_ns"] - killed_ns) / 1e6,
        reason=ended["words"] or ended["reason"],
        viewer_leases=_leases(stage),
    )


def _directory(driver: Player, epoch: str) -> Path:
    deadline = time.monotonic() + TIMEOUT_S
    while (said := driver.sample()).get("epoch") != epoch:
        if time.monotonic() > deadline:
            raise DemoFailed(f"the driver says nothing of epoch {epoch}")
        time.sleep(0.01)
    return Path(said["directory"])


def note_viewers_told(death: Death, stage: Stage) -> None:
    for viewer in stage.viewers:
        told = viewer.wait_for(f"unmapped-{death.epoch}", TIMEOUT_S)
        death.told_ms[viewer.name] = death.after_ms(told["happened_ns"])


def note_camera_back(death: Death, stage: Stage) -> None:
    ready = stage.camera.wait_for("ready", TIMEOUT_S)
    death.next_pid, death.next_lease = ready["pid"], ready["lease"]
    death.next_epoch, death.back_ms = ready["epoch"], death.after_ms(ready["at_ns"])


def note_frames_again(death: Death, stage: Stage) -> None:
    for viewer in stage.viewers:
        if (first := _first_frame(viewer, stage.camera, death.next_epoch)) is not None:
            death.frames_again_ms[viewer.name] = death.after_ms(first["at_ns"])
    death.leases_kept = death.viewer_leases == _leases(stage)


def _first_frame(viewer: Player, camera: Player, epoch: str | None) -> dict[str, Any] | None:
    """Its first word of the new epoch; none if the camera has filmed all that it had to, and lost it."""
    deadline = time.monotonic() + TIMEOUT_S
    while (first := viewer.heard(f"first-{epoch}")) is None and time.monotonic() < deadline:
        viewer.check_alive()
        if camera.heard("ledger") is not None:
            deadline = min(deadline, time.monotonic() + _LAST_CALL_S)
        time.sleep(0.005)
    return first


def _leases(stage: Stage) -> dict[str, str | None]:
    """Who holds which lease, as the viewers say."""
    return {viewer.name: viewer.sample().get("lease") for viewer in stage.viewers}
