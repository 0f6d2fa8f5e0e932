"""The how-to "connect two hosts", as it is written: two hosts with a driver and a bridge each."""

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
class Machine:
    """One host: a command line of its own, and what runs there."""

    line: CommandLine
    config: Path
    ready: Path

    @contextmanager
    def runs(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A role until the end of the block; up when the block begins."""
        file = self.ready / f"{words[0]}-{time.monotonic_ns()}"
        process = self.line.start(*words, "--config", str(self.config), "--ready-file", str(file))
        with running(process):
            deadline = time.monotonic() + TIMEOUT_S
            while not file.exists():
                assert process.poll() is None, f"{words} ended with {process.returncode}"
                assert time.monotonic() < deadline, words
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
def machines(
    request: pytest.FixtureRequest, aeron_dir: Path, shm_base: Path, tmp_path: Path
) -> Iterator[tuple[Machine, Machine]]:
    [text] = blocks(PAGE, "toml")
    ports = [free_port() for _ in range(3)]
    names = {f"10.0.0.2:4010{n}": f"127.0.0.1:{port}" for n, port in enumerate(ports)}
    config = tmp_path / "bridge.toml"
    config.write_text(substituted(text, names))
    made = []
    for name in ("a", "b"):
        base, state = shm_base / name, tmp_path / f"state-{name}"
        base.mkdir(mode=0o700)
        state.mkdir(mode=0o700)
        line = CommandLine(Path(f"{aeron_dir}-{name}"), base, {"XDG_STATE_HOME": str(state)})
        made.append(Machine(line, config, tmp_path))
    yield made[0], made[1]
    if not request.node.get_closest_marker("leaves_files"):
        for name in ("a", "b"):
            (shm_base / name).rmdir()


def exchange(
    producer: tp.Producer, consumer: tp.Consumer, count: int, wait_until: Callable[..., Any]
) -> set[int]:
    """Offers until `count` more frames have arrived; each is what was sent."""
    seen: set[int] = set()

    def enough() -> bool:
        producer.offer(np.full(5000, producer.next_seq % 251, np.uint8))
        for frame in consumer.poll():
            assert (frame.copy() == frame.seq % 251).all()
            seen.add(frame.seq)
        return len(seen) >= count

    wait_until(enough, timeout=TIMEOUT_S)
    return seen


def test_the_page_brings_a_stream_from_one_host_to_the_other(
    machines: tuple[Machine, Machine], wait_until: Callable[..., Any]
):
    here, there = machines
    check, status = (one for block in blocks(PAGE, "console") for one in steps(block))
    done = here.line.run("bridge", "run", "--config", str(here.config), "--check")
    assert done.returncode == 0, done.stderr
    assert looks_like(done.stderr.replace(str(here.config), "bridge.toml"), check[1])
    with ExitStack() as stack:
        for machine in (here, there):
            stack.enter_context(machine.runs("driver"))
        stack.enter_context(there.runs("bridge", "--direction", "receive"))
        stack.enter_context(here.runs("bridge"))
        producer = stack.enter_context(
            stack.enter_context(here.open()).producer(20_000, pools=["64KiB"], nslots=8)
        )
        consumer = stack.enter_context(stack.enter_context(there.open()).consumer(50_000))
        exchange(producer, consumer, 20, wait_until)

        def told() -> Any:
            [found] = there.line.json("bridge", "status")["mappings"]
            ledger = found["ledger"]
            return found if ledger and ledger["published"] and ledger["dropped"]["network"] == 0 else None

        found = wait_until(told, timeout=TIMEOUT_S)
        ledger = found["ledger"]
        dropped = ledger["dropped"]
        assert ledger["published"] == ledger["delivered"] + dropped["sender"] + dropped["receiver"]
        shown = there.line.run("bridge", "status", COLUMNS="120")
        assert shown.returncode == 0, shown.stderr
        assert looks_like("\n".join(shown.stdout.splitlines()[:1]), status[1].splitlines()[0])
        [half] = here.line.json("bridge", "status")["mappings"]
        assert half["published"] == half["sent"] + sum(half["dropped"].values())


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
def test_whoever_is_killed_comes_back_and_frames_flow_again(
    machines: tuple[Machine, Machine], wait_until: Callable[..., Any], end: str
):
    here, there = machines
    with ExitStack() as stack:
        roles: dict[str, tuple[Machine, tuple[str, ...]]] = {
            "source driver": (here, ("driver",)),
            "driver": (there, ("driver",)),
            "receiver": (there, ("bridge", "--direction", "receive")),
            "sender": (here, ("bridge",)),
        }
        processes = {}
        for name, (machine, words) in roles.items():
            if name != end:
                stack.enter_context(machine.runs(*words))
                continue
            one = stack.enter_context(ExitStack())
            processes[name] = one.enter_context(machine.runs(*words))
            first = one
        producer = stack.enter_context(
            stack.enter_context(here.open()).producer(20_000, pools=["64KiB"], nslots=8)
        )
        consumer = stack.enter_context(stack.enter_context(there.open()).consumer(50_000))
        before = exchange(producer, consumer, 5, wait_until)
        os.kill(processes[end].pid, signal.SIGKILL)
        processes[end].wait()
        first.pop_all()
        machine, words = roles[end]
        stack.enter_context(machine.runs(*words))
        after = exchange(producer, consumer, 5, wait_until)
        # A driver that comes back gives its producers a new epoch, and sequences begin anew.
        assert end == "source driver" or max(after) > max(before)


def test_a_mistake_is_named_with_its_key(machines: tuple[Machine, Machine], tmp_path: Path):
    here, _ = machines
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(here.config.read_text().replace("dest_stream_id = 50000", "dest_stream_id = 0"))
    done = here.line.run("bridge", "run", "--config", str(wrong), "--direction", "receive", "--check")
    assert done.returncode == 1
    assert "bridge.dest_stream_id_range" in done.stderr
    wrong.write_text(here.config.read_text().replace("dest_stream_id = 50000", "dest_stream_id = 1100"))
    done = here.line.run("bridge", "run", "--config", str(wrong), "--direction", "receive", "--check")
    assert done.returncode == 1
    assert "mappings[0].dest_stream_id 1100: that is aeron.descriptor_stream_id" in done.stderr


def test_no_bridge_is_said_with_what_to_do(machines: tuple[Machine, Machine]):
    here, _ = machines
    with here.runs("driver"):
        done = here.line.run("bridge", "status", "--timeout", "1")
    assert done.returncode == 1
    assert "tensorpool bridge --config FILE" in done.stderr


@pytest.mark.parametrize(
    ("direction", "config", "words"),
    [
        ("send", ("source_stream_id = 20000", "source_stream_id = 10000"), "stream 10000 cannot be read: "),
        ("receive", ("127.0.0.1", "192.0.2.1"), "is the address one of this host"),
    ],
)
def test_an_end_that_waits_for_what_cannot_come_says_why(
    machines: tuple[Machine, Machine], direction: str, config: tuple[str, str], words: str
):
    """A number that the driver does not give out, and an address of another host."""
    here, _ = machines
    here.config.write_text(here.config.read_text().replace(*config))
    with here.runs("driver"):
        process = here.line.start(
            "bridge", "--config", str(here.config), "--direction", direction, stderr=subprocess.PIPE
        )
        with running(process):
            assert process.stderr is not None
            told = next((line for line in process.stderr if "still waiting" in line), "")
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
    assert words in told
