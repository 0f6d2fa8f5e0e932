"""`tensorpool demo` as a person runs it."""

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
PATIENCE_S = 200

pytestmark = pytest.mark.timeout(PATIENCE_S + 60)


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def heard(viewer: dict[str, Any]) -> int:
    return viewer["received"] + sum(viewer["dropped"].values())


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    """What the demo tells machines."""
    done = run_demo("--seconds", "2", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_camera_is_killed_and_comes_back_and_every_frame_is_accounted_for(
    result: dict[str, Any],
) -> None:
    assert result["faults"] == []
    killed, second = result["epochs"]
    assert int(second["epoch"]) > int(killed["epoch"])
    assert (killed["committed_as_told_by"], killed["published"]) == ("the header ring", None)
    assert second["committed"] == 200 == second["published"] + sum(second["unpublished"].values())
    for book, most_in_flight in ((killed, 1), (second, 0)):
        for name in ("viewer", "slow model"):
            seen = book["viewers"][name]
            assert book["committed"] == heard(seen) + seen["in_flight"]
            assert 0 <= seen["in_flight"] <= most_in_flight
            assert seen["torn"] == 0
            assert seen["received"] > 0


def test_the_driver_notices_by_itself_and_the_viewers_go_on(result: dict[str, Any]) -> None:
    recovery = result["recovery"]
    # A missed keepalive would say something else: this is the lock that died with its holder.
    assert recovery["driver_says"] == "the producer's process has ended"
    assert recovery["epoch"] == [book["epoch"] for book in result["epochs"]]
    before, after = recovery["camera_lease"]
    assert int(after) > int(before)
    assert recovery["viewers_kept_their_leases"] is True
    told, again = recovery["viewers_told_ms"], recovery["viewers_have_frames_again_ms"]
    assert set(told) == set(again) == {"viewer", "slow model"}
    assert 0 <= recovery["noticed_by_driver_ms"] <= min(told.values())
    assert max(told.values()) < recovery["camera_back_ms"] < min(again.values())


def test_the_recorder_is_killed_too_and_its_recording_has_every_frame(result: dict[str, Any]) -> None:
    recorded = result["recording"]
    assert (recorded["problems"], recorded["torn"]) == ([], 0)
    first, second = recorded["epochs"]
    assert [first["epoch"], second["epoch"]] == [book["epoch"] for book in result["epochs"]]
    for page, book in zip(recorded["epochs"], result["epochs"], strict=True):
        assert page["span"] == page["rows"] + sum(page["gaps"].values())
        assert page["span"] in (book["committed"], book["committed"] - 1)
    assert len(recorded["recovered"]) == 1
    assert recorded["segments"] >= 3, "before the kill, after it, and the second epoch's"


def test_what_was_recorded_is_played_back_and_counted_by_spark(result: dict[str, Any]) -> None:
    rows = sum(page["rows"] for page in result["recording"]["epochs"])
    replay = result["replay"]
    assert replay["played"] == rows
    assert replay["wrong"] == 0
    assert replay["equal"] + replay["missed"] == rows
    assert replay["equal"] > 0
    spark = result["spark"]
    assert (spark["frames"], spark["equal"]) == (rows, rows)
    # Camera to gold: the table's numbers are the ledger's.
    tables = spark["tables"]
    assert (tables["frames"], tables["silver"], tables["rejected"]) == (rows, rows, 0)
    gaps = [epoch["gaps"] for epoch in result["recording"]["epochs"]]
    assert sum(tables["drops"].values()) == sum(sum(one.values()) for one in gaps)


def test_without_the_kill_there_is_one_epoch() -> None:
    done = run_demo("--seconds", "1", "--no-kill", "--no-spark", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (book,) = result["epochs"]
    assert (book["committed"], book["committed_as_told_by"]) == (200, "the camera")
    assert all(heard(seen) == 200 for seen in book["viewers"].values())
    assert (result["recovery"], result["faults"]) == (None, [])


def test_the_demo_tells_the_story_and_fits_eighty_columns() -> None:
    done = subprocess.run(
        [*DEMO, "--seconds", "1", "--no-spark"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout
    for part in (
        "killed the camera on purpose",
        "driver: the producer's process has ended",
        "camera started again",
        "have frames again",
        "the ledger",
        "as its ring says",
        "every frame is accounted for, none was torn",
        "killed the recorder on purpose",
        "the recording was verified",
        "replayed at speed 4",
    ):
        assert part in words
    assert re.search(r"\(\d{19} → \d{19}\)", words)
    assert max(map(len, words.splitlines())) <= 80


# --- ends


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A demo in the background; whatever happens, it is gone at the end, and so is what it made."""
    demo = subprocess.Popen([*DEMO, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield demo
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.communicate()
    assert _leftovers(demo.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_ends_the_demo_early_with_its_ledger(number: signal.Signals) -> None:
    with started("--seconds", "600", "--json") as demo:
        _wait_until_filming(demo.pid)
        demo.send_signal(number)
        out, err = demo.communicate(timeout=60)
    assert demo.returncode == 0, err
    (book,) = json.loads(out)["epochs"]
    assert 50 <= book["committed"] < 600 * 200


def test_ctrl_c_while_the_processes_start_leaves_nothing_behind() -> None:
    with started("--seconds", "600", "--json") as demo:
        _wait_for(lambda: len(_children(demo.pid)) > 1, "the processes did not start")
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=60)
    assert demo.returncode == 0, err
    assert json.loads(out)["faults"] == []


def test_ctrl_c_while_the_camera_is_dead_tells_what_there_is() -> None:
    with started("--seconds", "4", "--json") as demo:
        camera = _wait_until_filming(demo.pid)
        _wait_for(lambda: camera not in _children(demo.pid), "the camera was not killed")
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=60)
    assert demo.returncode == 0, err
    result = json.loads(out)
    assert result["faults"] == []
    assert result["epochs"][0]["committed_as_told_by"] == "the header ring"


def test_a_second_ctrl_c_breaks_off_and_leaves_nothing_behind() -> None:
    with started("--seconds", "600") as demo:
        _wait_until_filming(demo.pid)
        # Back to back: the second one comes before the first one's orderly end.
        demo.send_signal(signal.SIGINT)
        time.sleep(0.01)
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=60)
    assert demo.returncode in (0, 1)


@pytest.mark.parametrize("victim", ["camera", "driver"])
def test_a_process_that_dies_is_named_and_the_demo_fails(victim: str) -> None:
    with started("--seconds", "600") as demo:
        _wait_until_filming(demo.pid)
        os.kill(_child(demo.pid, f"demo.{victim}"), signal.SIGKILL)
        _, err = demo.communicate(timeout=90)
    assert demo.returncode == 1
    assert f"the {victim} ended early" in err


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--fps", "x"], ["--nonsense"]])
def test_misuse_is_told_apart_from_failure(arguments: list[str]) -> None:
    done = run_demo(*arguments)
    assert done.returncode == 2
    assert "Usage: " in done.stderr


# --- a look at a demo that runs


def _leftovers(director: int) -> list[Path]:
    return [path for path in Path("/dev/shm").iterdir() if f"demo-{director}" in path.name]


def _wait_until_filming(director: int) -> int:
    """The camera's process, once fifty frames are in its ring."""

    def filming() -> bool:
        camera = _child(director, "demo.camera")
        return bool(camera) and _newest_seq(camera) >= 50

    _wait_for(filming, "the camera did not film")
    return _child(director, "demo.camera")


def _wait_for(holds: Any, otherwise: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


def _child(director: int, module: str) -> int:
    """The process that runs a module of the demo; 0 if there is none."""
    for child in _children(director):
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


def test_two_hosts_and_a_bridge_between_them() -> None:
    done = run_demo("--hosts", "2", "--seconds", "2", "--fps", "50", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["published"] == found["committed"] == found["delivered"] + sum(found["dropped"].values())
    assert found["exact"]
    assert found["wrong"] == 0 < found["seen"]
    # The recorder there has them too, or says which it has not.
    recorded = found["recorder"]
    assert recorded["rows"] + recorded["missing"] == found["viewer"]["span"]
    assert recorded["torn"] == 0 < recorded["rows"]
    assert found["faults"] == []
    assert found["namespaces"] == may_make_namespaces()


def may_make_namespaces() -> bool:
    tried = subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True, timeout=60)
    return os.geteuid() == 0 and shutil.which("ip") is not None and tried.returncode == 0
