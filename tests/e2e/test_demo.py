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
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import s3_server

DEMO = [sys.executable, "-m", "tensorpool", "demo"]
TIMEOUT_S = 500

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
        out, err = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 0, err
    (epoch,) = json.loads(out)["epochs"]
    assert 50 <= epoch["committed"] < 600 * 200


def test_ctrl_c_during_start_leaves_no_files() -> None:
    with started("--seconds", "600", "--json") as demo:
        _wait_for(lambda: len(_children(demo.pid)) > 1, "the processes did not start")
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 0, err
    assert json.loads(out)["faults"] == []


def test_ctrl_c_while_the_camera_is_dead_prints_the_ledger() -> None:
    with started("--seconds", "4", "--json") as demo:
        camera = _wait_until_publishing(demo.pid)
        _wait_for(lambda: camera not in _children(demo.pid), "the camera was not killed")
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=TIMEOUT_S)
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
        demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode in (0, 1)


@pytest.mark.parametrize("victim", ["camera", "driver"])
def test_process_that_dies_fails_the_demo(victim: str) -> None:
    with started("--seconds", "600") as demo:
        _wait_until_publishing(demo.pid)
        os.kill(_child(demo.pid, f"demo.{victim}"), signal.SIGKILL)
        _, err = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 1
    assert f"the {victim} ended early" in err


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--fps", "x"], ["--nonsense"]])
def test_invalid_arguments_are_usage_errors(arguments: list[str]) -> None:
    done = run_demo(*arguments)
    assert done.returncode == 2
    assert "Usage: " in done.stderr


# --- a slow machine


def run_program(program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that changes a part of the demo before it runs it."""
    command = [
        sys.executable,
        "-c",
        "import os, signal, sys\nfrom tensorpool.demo import checks, run\n" + program,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


STOPPED_VIEWER = """
from tensorpool.demo.run import DemoRun
collect = DemoRun.collect_ledgers

def collect_slowly(self, listener):
    os.kill(self._demo.viewers[1].pid, signal.SIGSTOP)
    self._demo.timeout_s = 0.5
    try:
        return collect(self, listener)
    finally:
        os.kill(self._demo.viewers[1].pid, signal.SIGCONT)

DemoRun.collect_ledgers = collect_slowly
sys.exit(not run(seconds=1, fps=100, kill=False, spark=False, json_output=True))
"""


def test_process_that_is_too_slow_is_named_beside_the_ledger() -> None:
    done = run_program(STOPPED_VIEWER)
    assert "Traceback" not in done.stderr
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert "the slow model, asked to count its frames, took longer than 0.5 s" in result["faults"][0]
    assert "--timeout 1" in result["faults"][0]
    (epoch,) = result["epochs"]
    assert epoch["committed"] == 100
    assert accounted(epoch["viewers"]["viewer"]) == 100


def test_spark_that_is_too_slow_is_named_beside_the_ledger() -> None:
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    done = run_program(
        "checks._SPARK_TIMEOUTS = 0.001\n"
        "sys.exit(not run(seconds=1, fps=100, kill=False, spark=True, json_output=True))\n"
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    (fault,) = result["faults"]
    assert fault.startswith("the Spark query and the pipeline took longer than")
    assert "--no-spark" in fault
    assert result["epochs"][0]["committed"] == 100


def test_start_that_is_too_slow_is_an_error_without_traceback() -> None:
    done = run_demo("--timeout", "0.01")
    assert done.returncode == 1
    assert re.fullmatch(
        r"error: the driver, asked to start, took longer than 0.01 s: .*--timeout 0.02\n", done.stderr
    )


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


def test_console_shows_the_demo_while_it_runs() -> None:
    process = subprocess.Popen(
        [*DEMO, "--console", "--seconds", "6", "--no-kill", "--no-spark"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        address = next(line.strip() for line in lines if line.strip().startswith("http://127.0.0.1:"))
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address, timeout=60) as page:
            assert b"TensorPool console" in page.read()
        rest, _ = process.communicate(timeout=TIMEOUT_S)
        assert "every frame is accounted for" in rest
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
    # It ends together with the demo.
    with pytest.raises(urllib.error.URLError):
        opener.open(address, timeout=60)


def test_console_of_two_hosts_is_refused() -> None:
    done = run_demo("--console", "--hosts", "2")
    assert done.returncode == 2
    assert "--console shows one host" in done.stderr


def test_demo_goes_from_a_camera_to_gold_on_an_s3_server() -> None:
    if s3_server.program() is None:
        pytest.skip("no S3 server: tools/s3-server builds versitygw, and make test calls it")
    done = run_demo("--seconds", "1", "--no-kill", "--store", "s3", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["faults"] == []
    rows = sum(epoch["rows"] for epoch in result["recording"]["epochs"])
    spark = result["spark"]
    assert spark["store"] == "s3://demo"
    assert (spark["frames"], spark["equal"], spark["tables"]["frames"]) == (rows, rows, rows)


def test_demo_without_an_s3_server_prints_what_to_do(tmp_path: Path) -> None:
    # A PATH without the server, and an empty cache.
    java = shutil.which("java")
    (tmp_path / "bin").mkdir()
    if java is not None:
        (tmp_path / "bin" / "java").symlink_to(java)
    environment = {**os.environ, "PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [*DEMO, "--store", "s3"], capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 2
    assert "versitygw on the PATH" in done.stderr if java else "Java" in done.stderr
