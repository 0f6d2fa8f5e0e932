"""`tensorpool supervisor` and `tensorpool ledger`, as people run them; and the page about them."""

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
def command_line(aeron_dir: Path, shm_base: Path) -> CommandLine:
    return CommandLine(aeron_dir, shm_base, {"NO_COLOR": "1"})


def test_the_rules_of_the_page_are_sound(command_line: CommandLine, tmp_path: Path) -> None:
    rules = next(one for one in blocks(PAGE, "toml") if "[[supervisor.rules]]" in one)
    file = tmp_path / "supervisor.toml"
    file.write_text(rules)
    assert command_line.run("supervisor", "--config", str(file), "--check").returncode == 0
    file.write_text(rules.replace("max_rate_hz = 5", "max_rate_hz = 0"))
    done = command_line.run("supervisor", "--config", str(file), "--check")
    assert done.returncode in (1, 2)
    assert "limit needs max_rate_hz" in done.stderr + done.stdout


def test_it_runs_is_asked_and_ends_on_ctrl_c_and_the_ledger_is_exact(
    command_line: CommandLine, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    alone = command_line.run("supervisor", "status")
    assert alone.returncode == 1
    with tp.open("embedded", aeron_dir=command_line.aeron_dir, shm_base_dir=command_line.shm_base) as ctx:
        missing = command_line.run("supervisor", "status")
        assert (missing.returncode, "no supervisor answers" in missing.stderr) == (1, True)
        with (
            ctx.producer(20_000, pools=["64KiB"], nslots=64, name="camera-1") as camera,
            ctx.consumer(20_000) as frames,
            (tmp_path / "log").open("w") as log,
            running(command_line.start("supervisor", "--metrics", "0", stderr=log)) as process,
        ):
            frames.wait_for_producer()
            for _ in range(30):
                camera.offer(np.zeros(8))
                frames.receive(timeout=60)

            def seen() -> Any:
                done = command_line.run("supervisor", "status", "--json")
                found = json.loads(done.stdout) if done.returncode == 0 else {"system": []}
                return [one for one in found["system"] if one["stream_id"] == 20_000 and one["consumers"]]

            [stream] = wait_until(seen, timeout=60)
            assert stream["name"] == "camera-1"
            assert "metrics are at http://127.0.0.1:" in (tmp_path / "log").read_text()
            assert command_line.json("supervisor", "status")["ledger"]["paths"]["mismatch"] == 0
            consumer = stream["consumers"][0]["consumer_id"]
            shown = command_line.run("supervisor", "status").stdout
            assert str(consumer) in shown
            done = command_line.run(
                "supervisor", "limit", "20000", str(consumer), "--hz", "5", "--reason", "try"
            )
            assert done.returncode == 0, done.stderr
            wait_until(lambda: frames.standing()["mode"] == "rate_limited", timeout=60)
            ledger = command_line.json("ledger", "--stream", "20000")
            assert {(row["path"], row["published"], row["verdict"]) for row in ledger} == {
                ("producer", 30, "exact"),
                ("consumer", 30, "exact"),
            }
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0


def test_a_ledger_that_nobody_tells_for_says_so(command_line: CommandLine) -> None:
    with tp.open("embedded", aeron_dir=command_line.aeron_dir, shm_base_dir=command_line.shm_base):
        done = command_line.run("ledger", "--settle", "1")
    assert done.returncode == 0
    assert "nobody tells" in done.stderr
