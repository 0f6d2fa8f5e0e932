"""The commands of `tensorpool driver`, with the driver in another process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.driver import read_holder
from tests.e2e.commandline import TIMEOUT_S, CommandLine, offering, running

TOKEN = "s3same"


@dataclass(frozen=True)
class RunningDriver:
    """A driver process and its command line."""

    command: CommandLine
    process: subprocess.Popen[str]
    stream_id: int

    def open(self) -> tp.Context:
        """Opens a context on this driver."""
        return tp.open(
            "driver",
            aeron_dir=self.command.aeron_dir,
            media_driver="external",
            shm_base_dir=self.command.shm_base,
        )

    def wait_ended(self) -> int:
        """Waits for the end; returns the exit status."""
        self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode


@pytest.fixture
def config(tmp_path: Path, free_stream_id: int) -> Path:
    file = tmp_path / "tensorpool.toml"
    file.write_text(
        f"""
        [service]
        token = "{TOKEN}"
        [driver]
        dynamic_ids = "1-9"
        [[driver.streams]]
        stream_id = {free_stream_id}
        name = "camera"
        nslots = 4
        pools = ["64KiB"]
        """
    )
    return file


@pytest.fixture
def command_line(aeron_dir: Path, shm_base: Path) -> CommandLine:
    return CommandLine(aeron_dir, shm_base)


@pytest.fixture
def driver(
    command_line: CommandLine, config: Path, free_stream_id: int, tmp_path: Path, wait_until: Callable
) -> Iterator[RunningDriver]:
    """A `tensorpool driver` process with an embedded media driver."""
    ready = tmp_path / "ready"
    arguments = ["driver", "--config", str(config), "--ready-file", str(ready)]
    with running(command_line.start(*arguments, stderr=subprocess.PIPE)) as process:
        wait_until(lambda: ready.exists() or process.poll() is not None, timeout=TIMEOUT_S)
        assert process.poll() is None, process.communicate()[1]
        yield RunningDriver(command_line, process, free_stream_id)
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)


def test_status_streams_and_leases_describe_the_driver(driver: RunningDriver) -> None:
    command = driver.command
    status = command.json("driver", "status")
    assert (status["namespace"], status["pid"], status["embedded"]) == ("default", driver.process.pid, False)
    assert "a service" in command.run("driver", "status").stdout
    (stream,) = command.json("driver", "streams")
    assert (stream["stream_id"], stream["name"], stream["kind"], stream["producer"]) == (
        driver.stream_id, "camera", "static", None,
    )  # fmt: skip
    assert command.run("driver", "leases").stderr == "no client holds a lease\n"
    with (
        driver.open() as ctx,
        ctx.producer(driver.stream_id, pools=["64KiB"], nslots=4) as producer,
        ctx.consumer(driver.stream_id) as consumer,
        offering(producer, np.zeros((8, 8), np.uint8)),
    ):
        assert consumer.wait_for_producer(TIMEOUT_S)
        leases = command.json("driver", "leases")
        assert sorted(lease["role"] for lease in leases) == ["consumer", "producer"]
        assert all(isinstance(lease["lease_id"], str) for lease in leases)
        output = command.run("driver", "leases", "--stream", str(driver.stream_id)).stdout
        assert all(lease["lease_id"] in output for lease in leases)
        assert re.search(rf"{driver.stream_id} +camera +static", command.run("driver", "streams").stdout)
        # The stream commands take no lease.
        listed = {row["stream_id"]: row for row in command.json("stream", "ls")}
        assert listed[driver.stream_id]["name"] == "camera"
        assert listed[driver.stream_id]["driver"]["consumers"] == 1
        command.run("stream", "echo", str(driver.stream_id), "--count", "1")
        held = command.json("stream", "info", str(driver.stream_id))["leases"]
        assert sorted(lease["role"] for lease in held) == ["consumer", "producer"]


def test_tables_fit_eighty_columns(driver: RunningDriver) -> None:
    with driver.open() as ctx, ctx.producer(driver.stream_id, pools=["64KiB"], nslots=4):
        for command in (["driver", "streams"], ["driver", "leases"], ["driver", "status"], ["stream", "ls"]):
            lines = driver.command.run(*command, COLUMNS="80").stdout.splitlines()
            assert lines
            assert max(map(len, lines)) <= 80, command
            # Ids that users copy are not truncated.
            assert "…" not in "".join(lines) or command == ["stream", "ls"]


def test_revoke_needs_the_token(driver: RunningDriver, wait_until: Callable) -> None:
    command, stream = driver.command, ["--stream", str(driver.stream_id)]
    with driver.open() as ctx, ctx.producer(driver.stream_id, pools=["64KiB"], nslots=4):
        (before,) = command.json("driver", "leases")
        rejected = command.run("driver", "revoke", *stream)
        assert rejected.returncode == 1
        assert "needs the service's token" in rejected.stderr
        assert command.run("driver", "revoke", *stream, TENSORPOOL_TOKEN="wrong").returncode == 1
        assert [lease["lease_id"] for lease in command.json("driver", "leases")] == [before["lease_id"]]

        result = command.run(
            "driver", "revoke", before["lease_id"], "--reason", "cleaning", "--json", TENSORPOOL_TOKEN=TOKEN
        )
        assert result.returncode == 0, result.stderr
        assert [lease["lease_id"] for lease in json.loads(result.stdout)] == [before["lease_id"]]
        assert TOKEN not in result.stdout + result.stderr

        def is_reattached() -> bool:
            return [lease["lease_id"] for lease in command.json("driver", "leases")] not in (
                [],
                [before["lease_id"]],
            )

        wait_until(is_reattached, timeout=TIMEOUT_S)
        unmatched = command.run("driver", "revoke", "--client", "5", TENSORPOOL_TOKEN=TOKEN)
        assert (unmatched.returncode, unmatched.stderr) == (1, "no lease matches: nothing was revoked\n")
        assert command.run("driver", "revoke", TENSORPOOL_TOKEN=TOKEN).returncode == 2


def test_stop_waits_until_the_driver_has_ended(driver: RunningDriver) -> None:
    refused = driver.command.run("driver", "stop")
    assert refused.returncode == 1
    assert f"; kill {driver.process.pid} does the same" in refused.stderr
    assert driver.process.poll() is None
    result = driver.command.run(
        "driver", "stop", "--reason", "night", "--timeout", "30", TENSORPOOL_TOKEN=TOKEN
    )
    assert result.returncode == 0, result.stderr
    assert read_holder(driver.command.shm_base, "default") is None
    assert result.stdout == f"driver stopped, process {driver.process.pid}; 0 leases ended\n"
    assert driver.wait_ended() == 0
    assert not list(driver.command.shm_base.rglob("*.ring"))


def test_sigterm_ends_the_driver_in_order(driver: RunningDriver) -> None:
    driver.process.send_signal(signal.SIGTERM)
    assert driver.wait_ended() == 0
    assert not driver.command.aeron_dir.exists()


def test_second_driver_names_the_holder_of_the_namespace(driver: RunningDriver, config: Path) -> None:
    second = driver.command.run("driver", "run", "--config", str(config))
    assert second.returncode == 1
    assert f"process {driver.process.pid} of" in second.stderr
    assert "Traceback" not in second.stderr


def test_check_and_print_config_do_not_run_the_driver(command_line: CommandLine, config: Path) -> None:
    good = command_line.run("driver", "--config", str(config), "--check")
    assert (good.returncode, good.stderr) == (0, f"the configuration is good ({config})\n")
    printed = command_line.run("driver", "run", "--config", str(config), "--print-config")
    assert 'name = "camera"' in printed.stdout
    assert TOKEN not in printed.stdout
    config.write_text("[driver]\nkeep_alive = '1s'\n")
    bad = command_line.run("driver", "--config", str(config), "--check")
    assert bad.returncode == 1
    assert "did you mean 'keepalive'?" in bad.stderr
    assert not command_line.aeron_dir.exists()


@pytest.mark.parametrize("command", ["status", "streams", "leases"])
def test_commands_without_a_driver_fail_with_one_line(command_line: CommandLine, command: str) -> None:
    with tp.MediaDriver(command_line.aeron_dir):
        result = command_line.run("driver", command, "--timeout", "0.5")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: no SHM driver replies on this media driver: start one with")
    assert len(result.stderr.splitlines()) == 1


def test_commands_show_an_embedded_driver(command_line: CommandLine, free_stream_id: int) -> None:
    with (
        tp.open("embedded", aeron_dir=command_line.aeron_dir, shm_base_dir=command_line.shm_base) as ctx,
        ctx.producer(free_stream_id, pools=["64KiB"], nslots=2, name="here"),
    ):
        assert command_line.json("driver", "status")["embedded"] is True
        (stream,) = command_line.json("driver", "streams")
        assert (stream["name"], stream["kind"]) == ("here", "dynamic")
        other_namespace = replace(command_line, more={"TENSORPOOL_SHM__NAMESPACE": "other"})
        assert other_namespace.json("driver", "status")["namespace"] == "default"
