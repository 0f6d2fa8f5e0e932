"""The how-to "connect two hosts" and `tensorpool bridge`: two hosts with a driver and a bridge each."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests.e2e.commandline import TIMEOUT_S, CommandLine, running
from tests.e2e.pages import ROOT, blocks, looks_like, steps, substituted
from tests.ports import free_port

PAGE = ROOT / "docs" / "how-to" / "connect-two-hosts.md"


@dataclass(frozen=True)
class BridgeHost:
    """A host: its command line, its configuration, and the roles that run there."""

    line: CommandLine
    config: Path
    ready: Path

    @contextmanager
    def runs(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A role, ready when the block begins, until the block ends."""
        file = self.ready / f"{arguments[0]}-{time.monotonic_ns()}"
        process = self.line.start(*arguments, "--config", str(self.config), "--ready-file", str(file))
        with running(process):
            deadline = time.monotonic() + TIMEOUT_S
            while not file.exists():
                assert process.poll() is None, f"{arguments} ended with {process.returncode}"
                assert time.monotonic() < deadline, arguments
                time.sleep(0.01)
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0

    def open(self) -> tp.Context:
        return tp.open(
            "driver",
            aeron_dir=self.line.aeron_dir,
            shm_base_dir=self.line.shm_base,
            connect_timeout=TIMEOUT_S,
        )


@pytest.fixture
def hosts(
    request: pytest.FixtureRequest, aeron_dir: Path, shm_base: Path, tmp_path: Path
) -> Iterator[tuple[BridgeHost, BridgeHost]]:
    text = next(block for block in blocks(PAGE, "toml") if "[[bridge.mappings]]" in block)
    ports = [free_port() for _ in range(3)]
    addresses = {f"10.0.0.2:4010{n}": f"127.0.0.1:{port}" for n, port in enumerate(ports)}
    config = tmp_path / "bridge.toml"
    config.write_text(substituted(text, addresses))
    pair = []
    for name in ("a", "b"):
        base, state = shm_base / name, tmp_path / f"state-{name}"
        base.mkdir(mode=0o700)
        state.mkdir(mode=0o700)
        line = CommandLine(Path(f"{aeron_dir}-{name}"), base, {"XDG_STATE_HOME": str(state)})
        pair.append(BridgeHost(line, config, tmp_path))
    yield pair[0], pair[1]
    if not request.node.get_closest_marker("leaves_files"):
        for name in ("a", "b"):
            (shm_base / name).rmdir()


def exchange(
    producer: tp.Producer, consumer: tp.Consumer, count: int, wait_until: Callable[..., Any]
) -> set[int]:
    """Offers until `count` more frames are received; checks their content."""
    seen: set[int] = set()

    def is_complete() -> bool:
        producer.offer(np.full(5000, producer.next_seq % 251, np.uint8))
        for frame in consumer.poll():
            assert (frame.copy() == frame.seq % 251).all()
            seen.add(frame.seq)
        return len(seen) >= count

    wait_until(is_complete, timeout=TIMEOUT_S)
    return seen


def test_page_bridges_a_stream_between_two_hosts(
    hosts: tuple[BridgeHost, BridgeHost], wait_until: Callable[..., Any]
):
    here, there = hosts
    check, status = (step for block in blocks(PAGE, "console") for step in steps(block))
    result = here.line.run("bridge", "run", "--config", str(here.config), "--check")
    assert result.returncode == 0, result.stderr
    assert looks_like(result.stderr.replace(str(here.config), "bridge.toml"), check[1])
    with ExitStack() as stack:
        for host in (here, there):
            stack.enter_context(host.runs("driver"))
        stack.enter_context(there.runs("bridge", "--direction", "receive"))
        stack.enter_context(here.runs("bridge"))
        producer = stack.enter_context(
            stack.enter_context(here.open()).producer(20_000, pools=["64KiB"], nslots=8)
        )
        consumer = stack.enter_context(stack.enter_context(there.open()).consumer(50_000))
        exchange(producer, consumer, 20, wait_until)

        def final_row() -> Any:
            [row] = there.line.json("bridge", "status")["mappings"]
            ledger = row["ledger"]
            return row if ledger and ledger["published"] and ledger["dropped"]["network"] == 0 else None

        ledger = wait_until(final_row, timeout=TIMEOUT_S)["ledger"]
        dropped = ledger["dropped"]
        assert ledger["published"] == ledger["delivered"] + dropped["sender"] + dropped["receiver"]
        shown = there.line.run("bridge", "status", COLUMNS="120")
        assert shown.returncode == 0, shown.stderr
        assert looks_like("\n".join(shown.stdout.splitlines()[:1]), status[1].splitlines()[0])
        [sender] = here.line.json("bridge", "status")["mappings"]
        assert sender["published"] == sender["sent"] + sum(sender["dropped"].values())


@pytest.mark.leaves_files(
    "a killed driver leaves its files to the next one, which may not yet have removed them"
)
@pytest.mark.parametrize(
    "end",
    [
        "receiver",
        pytest.param("sender", marks=pytest.mark.long),
        pytest.param("driver", marks=pytest.mark.long),
        pytest.param("source driver", marks=pytest.mark.long),
    ],
)
def test_bridge_recovers_after_a_killed_process(
    hosts: tuple[BridgeHost, BridgeHost], wait_until: Callable[..., Any], end: str
):
    here, there = hosts
    with ExitStack() as stack:
        roles: dict[str, tuple[BridgeHost, tuple[str, ...]]] = {
            "source driver": (here, ("driver",)),
            "driver": (there, ("driver",)),
            "receiver": (there, ("bridge", "--direction", "receive")),
            "sender": (here, ("bridge",)),
        }
        processes = {}
        for name, (host, arguments) in roles.items():
            if name != end:
                stack.enter_context(host.runs(*arguments))
                continue
            first_life = stack.enter_context(ExitStack())
            processes[name] = first_life.enter_context(host.runs(*arguments))
        producer = stack.enter_context(
            stack.enter_context(here.open()).producer(20_000, pools=["64KiB"], nslots=8)
        )
        consumer = stack.enter_context(stack.enter_context(there.open()).consumer(50_000))
        before = exchange(producer, consumer, 5, wait_until)
        os.kill(processes[end].pid, signal.SIGKILL)
        processes[end].wait()
        first_life.pop_all()
        host, arguments = roles[end]
        stack.enter_context(host.runs(*arguments))
        after = exchange(producer, consumer, 5, wait_until)
        # After a driver restart producers have a new epoch, and sequences start at zero.
        assert end == "source driver" or max(after) > max(before)


def test_bridge_check_reports_faults_with_their_key(hosts: tuple[BridgeHost, BridgeHost], tmp_path: Path):
    here, _ = hosts
    invalid = tmp_path / "invalid.toml"
    invalid.write_text(
        here.config.read_text()
        .replace("dest_stream_id = 50000", "dest_stream_id = 0")
        .replace("[bridge]", '[bridge]\ndest_stream_id_range = "1000-1009"')
    )
    result = here.line.run("bridge", "run", "--config", str(invalid), "--direction", "receive", "--check")
    assert result.returncode == 1
    assert "bridge.dest_stream_id_range" in result.stderr
    invalid.write_text(here.config.read_text().replace("dest_stream_id = 50000", "dest_stream_id = 1100"))
    result = here.line.run("bridge", "run", "--config", str(invalid), "--direction", "receive", "--check")
    assert result.returncode == 1
    assert "mappings[0].dest_stream_id 1100: that is aeron.descriptor_stream_id" in result.stderr


def test_bridge_status_without_a_bridge_explains_how_to_start(hosts: tuple[BridgeHost, BridgeHost]):
    here, _ = hosts
    with here.runs("driver"):
        result = here.line.run("bridge", "status", "--timeout", "1")
    assert result.returncode == 1
    assert "tensorpool bridge --config FILE" in result.stderr


@pytest.mark.parametrize(
    ("direction", "config", "reason"),
    [
        ("send", ("source_stream_id = 20000", "source_stream_id = 10000"), "stream 10000 cannot be read: "),
        ("receive", ("127.0.0.1", "192.0.2.1"), "is the address one of this host"),
    ],
)
def test_bridge_logs_why_it_still_waits(
    hosts: tuple[BridgeHost, BridgeHost], direction: str, config: tuple[str, str], reason: str
):
    """A stream id that the driver does not provision, and an address of another host."""
    here, _ = hosts
    here.config.write_text(here.config.read_text().replace(*config))
    with here.runs("driver"):
        process = here.line.start(
            "bridge", "--config", str(here.config), "--direction", direction, stderr=subprocess.PIPE
        )
        with running(process):
            assert process.stderr is not None
            logged = next((line for line in process.stderr if "still waiting" in line), "")
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
    assert reason in logged
