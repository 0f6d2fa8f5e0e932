"""`tensorpool demo` as a process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DEMO = [sys.executable, "-m", "tensorpool", "demo"]
TIMEOUT_S = 200

pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *arguments], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


def accounted(viewer: dict[str, Any]) -> int:
    return viewer["received"] + sum(viewer["dropped"].values())


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    """The JSON output of a demo."""
    done = run_demo("--seconds", "2", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_killed_camera_recovers_and_every_frame_is_accounted_for(
    result: dict[str, Any],
) -> None:
    assert result["faults"] == []
    killed, second = result["epochs"]
    assert int(second["epoch"]) > int(killed["epoch"])
    assert (killed["committed_counted_by"], killed["published"]) == ("the header ring", None)
    assert second["committed"] == 200 == second["published"] + sum(second["unpublished"].values())
    for epoch, max_in_flight in ((killed, 1), (second, 0)):
        for name in ("viewer", "slow model"):
            viewer = epoch["viewers"][name]
            assert epoch["committed"] == accounted(viewer) + viewer["in_flight"]
            assert 0 <= viewer["in_flight"] <= max_in_flight
            assert viewer["torn"] == 0
            assert viewer["received"] > 0


def test_driver_detects_the_kill_and_viewers_recover(result: dict[str, Any]) -> None:
    recovery = result["recovery"]
    # Not a missed keepalive: the driver saw the lock of the dead process released.
    assert recovery["revoke_reason"] == "the producer's process has ended"
    assert recovery["epoch"] == [epoch["epoch"] for epoch in result["epochs"]]
    before, after = recovery["camera_lease"]
    assert int(after) > int(before)
    assert recovery["viewer_leases_kept"] is True
    unmapped, resumed = recovery["viewers_unmapped_ms"], recovery["viewers_resumed_ms"]
    assert set(unmapped) == set(resumed) == {"viewer", "slow model"}
    assert 0 <= recovery["revoked_ms"] <= min(unmapped.values())
    assert max(unmapped.values()) < recovery["camera_restarted_ms"] < min(resumed.values())


def test_killed_recorder_leaves_a_complete_recording(result: dict[str, Any]) -> None:
    recorded = result["recording"]
    assert (recorded["problems"], recorded["torn"]) == ([], 0)
    first, second = recorded["epochs"]
    assert [first["epoch"], second["epoch"]] == [epoch["epoch"] for epoch in result["epochs"]]
    for row, camera in zip(recorded["epochs"], result["epochs"], strict=True):
        assert row["span"] == row["rows"] + sum(row["gaps"].values())
        assert row["span"] in (camera["committed"], camera["committed"] - 1)
    assert len(recorded["recovered"]) == 1
    assert recorded["segments"] >= 3, "one before the kill, one after it, one of the second epoch"


def test_recording_is_replayed_and_counted_by_spark(result: dict[str, Any]) -> None:
    rows = sum(epoch["rows"] for epoch in result["recording"]["epochs"])
    replay = result["replay"]
    assert replay["replayed"] == rows
    assert replay["wrong"] == 0
    assert replay["equal"] + replay["missed"] == rows
    assert replay["equal"] > 0
    spark = result["spark"]
    assert (spark["frames"], spark["equal"]) == (rows, rows)
    # The counts of the gold table are those of the ledger.
    tables = spark["tables"]
    assert (tables["frames"], tables["silver"], tables["rejected"]) == (rows, rows, 0)
    gaps = [epoch["gaps"] for epoch in result["recording"]["epochs"]]
    assert sum(tables["drops"].values()) == sum(sum(counts.values()) for counts in gaps)


def test_demo_without_kill_has_one_epoch() -> None:
    done = run_demo("--seconds", "1", "--no-kill", "--no-spark", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (epoch,) = result["epochs"]
    assert (epoch["committed"], epoch["committed_counted_by"]) == (200, "the camera")
    assert all(accounted(viewer) == 200 for viewer in epoch["viewers"].values())
    assert (result["recovery"], result["faults"]) == (None, [])


def test_demo_output_is_complete_and_fits_eighty_columns() -> None:
    done = subprocess.run(
        [*DEMO, "--seconds", "1", "--no-spark"],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout
    for part in (
        "killed the camera on purpose",
        "driver: the producer's process has ended",
        "camera started again",
        "have frames again",
        "the ledger",
        "counted in its ring",
        "every frame is accounted for, none was torn",
        "killed the recorder on purpose",
        "the recording was verified",
        "replayed at speed 4",
    ):
        assert part in text
    assert re.search(r"\(\d{19} → \d{19}\)", text)
    assert max(map(len, text.splitlines())) <= 80


# --- ends


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A demo in the background; at the end its process and its files are gone."""
    demo = subprocess.Popen([*DEMO, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield demo
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.communicate()
    assert _leftovers(demo.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_demo_early_with_its_ledger(number: signal.Signals) -> None:
    with started("--seconds", "600", "--json") as demo:
        _wait_until_publishing(demo.pid)
        demo.send_signal(number)
        out, err = demo.communicate(timeout=60)
    assert demo.returncode == 0, err
    (epoch,) = json.loads(out)["epochs"]
    assert 50 <= epoch["committed"] < 600 * 200


def test_ctrl_c_during_start_leaves_no_files() -> None:
    with started("--seconds", "600", "--json") as demo:
        _wait_for(lambda: len(_children(demo.pid)) > 1, "the processes did not start")
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=60)
    assert demo.returncode == 0, err
    assert json.loads(out)["faults"] == []


def test_ctrl_c_while_the_camera_is_dead_prints_the_ledger() -> None:
    with started("--seconds", "4", "--json") as demo:
        camera = _wait_until_publishing(demo.pid)
        _wait_for(lambda: camera not in _children(demo.pid), "the camera was not killed")
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=60)
    assert demo.returncode == 0, err
    result = json.loads(out)
    assert result["faults"] == []
    assert result["epochs"][0]["committed_counted_by"] == "the header ring"


def test_second_ctrl_c_interrupts_and_leaves_no_files() -> None:
    with started("--seconds", "600") as demo:
        _wait_until_publishing(demo.pid)
        # The second signal arrives before the first has ended the demo.
        demo.send_signal(signal.SIGINT)
        time.sleep(0.01)
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=60)
    assert demo.returncode in (0, 1)


@pytest.mark.parametrize("victim", ["camera", "driver"])
def test_process_that_dies_fails_the_demo(victim: str) -> None:
    with started("--seconds", "600") as demo:
        _wait_until_publishing(demo.pid)
        os.kill(_child(demo.pid, f"demo.{victim}"), signal.SIGKILL)
        _, err = demo.communicate(timeout=90)
    assert demo.returncode == 1
    assert f"the {victim} ended early" in err


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--fps", "x"], ["--nonsense"]])
def test_invalid_arguments_are_usage_errors(arguments: list[str]) -> None:
    done = run_demo(*arguments)
    assert done.returncode == 2
    assert "Usage: " in done.stderr


# --- processes of a running demo


def _leftovers(parent: int) -> list[Path]:
    return [path for path in Path("/dev/shm").iterdir() if f"demo-{parent}" in path.name]


def _wait_until_publishing(parent: int) -> int:
    """The camera's process, once fifty frames are in its ring."""

    def is_publishing() -> bool:
        camera = _child(parent, "demo.camera")
        return bool(camera) and _newest_seq(camera) >= 50

    _wait_for(is_publishing, "the camera did not publish")
    return _child(parent, "demo.camera")


def _wait_for(holds: Any, otherwise: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


def _child(parent: int, module: str) -> int:
    """The process that runs a module of the demo; 0 if there is none."""
    for child in _children(parent):
        if module.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
            return child
    return 0


def _newest_seq(camera: int) -> int:
    """The highest sequence in the header ring that the camera has mapped."""
    mapped = re.search(r"\S+/header\.ring", Path(f"/proc/{camera}/maps").read_text())
    if mapped is None:
        return -1
    slots = Path(mapped[0]).read_bytes()[64:]
    return max(int.from_bytes(slots[at : at + 8], "little") >> 1 for at in range(0, len(slots), 256))


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_two_hosts_account_for_every_frame() -> None:
    done = run_demo("--hosts", "2", "--seconds", "2", "--fps", "50", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["published"] == result["committed"] == result["delivered"] + sum(result["dropped"].values())
    assert result["exact"]
    assert result["wrong"] == 0 < result["checked"]
    # The recorder has each frame, or a gap for it.
    recorded = result["recorder"]
    assert recorded["rows"] + recorded["missing"] == result["viewer"]["span"]
    assert recorded["torn"] == 0 < recorded["rows"]
    assert result["faults"] == []
    assert result["namespaces"] == can_create_namespaces()


def can_create_namespaces() -> bool:
    done = subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True, timeout=60)
    return os.geteuid() == 0 and shutil.which("ip") is not None and done.returncode == 0
