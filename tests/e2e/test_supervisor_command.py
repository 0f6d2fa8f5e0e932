"""`tensorpool supervisor` and `tensorpool ledger` as processes, and the page about them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests.e2e.commandline import CommandLine, running
from tests.e2e.pages import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "monitor-a-system.md"


@pytest.fixture
def commands(aeron_dir: Path, shm_base: Path) -> CommandLine:
    return CommandLine(aeron_dir, shm_base, {"NO_COLOR": "1"})


def test_rules_of_the_page_are_valid(commands: CommandLine, tmp_path: Path) -> None:
    rules = next(block for block in blocks(PAGE, "toml") if "[[supervisor.rules]]" in block)
    file = tmp_path / "supervisor.toml"
    file.write_text(rules)
    assert commands.run("supervisor", "--config", str(file), "--check").returncode == 0
    file.write_text(rules.replace("max_rate_hz = 5", "max_rate_hz = 0"))
    done = commands.run("supervisor", "--config", str(file), "--check")
    assert done.returncode in (1, 2)
    assert "limit needs max_rate_hz" in done.stderr + done.stdout


def test_supervisor_runs_limits_a_consumer_and_ends_on_ctrl_c(
    commands: CommandLine, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    alone = commands.run("supervisor", "status")
    assert alone.returncode == 1
    with tp.open("embedded", aeron_dir=commands.aeron_dir, shm_base_dir=commands.shm_base) as ctx:
        missing = commands.run("supervisor", "status")
        assert (missing.returncode, "no supervisor answers" in missing.stderr) == (1, True)
        with (
            ctx.producer(20_000, pools=["64KiB"], nslots=64, name="camera-1") as camera,
            ctx.consumer(20_000) as frames,
            (tmp_path / "log").open("w") as log,
            running(commands.start("supervisor", "--metrics", "0", stderr=log)) as process,
        ):
            frames.wait_for_producer()
            for _ in range(30):
                camera.offer(np.zeros(8))
                frames.receive(timeout=60)

            def monitored() -> Any:
                done = commands.run("supervisor", "status", "--json")
                status = json.loads(done.stdout) if done.returncode == 0 else {"system": []}
                return [s for s in status["system"] if s["stream_id"] == 20_000 and s["consumers"]]

            [stream] = wait_until(monitored, timeout=60)
            assert stream["name"] == "camera-1"
            assert "metrics are at http://127.0.0.1:" in (tmp_path / "log").read_text()
            assert commands.json("supervisor", "status")["ledger"]["paths"]["mismatch"] == 0
            consumer = stream["consumers"][0]["consumer_id"]
            shown = commands.run("supervisor", "status").stdout
            assert str(consumer) in shown
            done = commands.run("supervisor", "limit", "20000", str(consumer), "--hz", "5", "--reason", "try")
            assert done.returncode == 0, done.stderr
            wait_until(lambda: frames.state().mode == "rate_limited", timeout=60)
            ledger = commands.json("ledger", "--stream", "20000")
            assert {(row["path"], row["published"], row["verdict"]) for row in ledger} == {
                ("producer", 30, "exact"),
                ("consumer", 30, "exact"),
            }
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0


def test_ledger_without_reports_prints_a_message(commands: CommandLine) -> None:
    with tp.open("embedded", aeron_dir=commands.aeron_dir, shm_base_dir=commands.shm_base):
        done = commands.run("ledger", "--settle", "1")
    assert done.returncode == 0
    assert "no reports" in done.stderr
