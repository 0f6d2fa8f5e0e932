"""The media driver for UDP: a process of its own, whose end affects the bridge and no other role."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.context.config import AeronSettings, ContextSettings, ShmSettings
from tensorpool.driver import DriverSettings
from tensorpool.runtime.config import Config
from tensorpool.service.config import ServiceSettings
from tensorpool.transport import StreamAddress
from tensorpool.transport.media_driver import network_dir, network_dirs, read_mark_file
from tests import leaks
from tests.integration.bridge.hosts import DEADLINE_S, Host, Pair, channel, flows, row
from tests.ports import free_port


def network_pid(host: Host) -> int:
    pid = host.context.connection.network.pid
    assert pid is not None
    return pid


@pytest.mark.parametrize("end", ["here", "there"])
def test_killed_network_driver_costs_only_the_bridge(
    pair: Pair,
    free_stream_ids: Callable[[], int],
    wait_until: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    end: str,
):
    source, dest = free_stream_ids(), free_stream_ids()
    host: Host = getattr(pair, end)
    producer = pair.here.context.producer(source, pools=["64KiB"], nslots=64)
    local = pair.here.context.consumer(source)
    sender, receiver = pair.connect(source, dest)
    remote = pair.there.context.consumer(dest)
    wait_until(lambda: flows(sender, receiver, producer, remote), timeout=DEADLINE_S)
    epochs = (producer.epoch, remote.epoch)
    local_seqs: list[int] = []
    remote_seqs: list[int] = []

    def exchange() -> None:
        producer.offer(np.full(5000, producer.next_seq % 251, np.uint8))
        for seqs, consumer in ((local_seqs, local), (remote_seqs, remote)):
            for frame in consumer.poll():
                assert (frame.copy() == frame.seq % 251).all()
                seqs.append(frame.seq)

    def has_crossed(count: int) -> Callable[[], bool]:
        until = len(remote_seqs) + count

        def is_done() -> bool:
            exchange()
            return len(remote_seqs) >= until

        return is_done

    wait_until(has_crossed(10), timeout=DEADLINE_S)
    first = network_pid(host)
    assert first != os.getpid()
    os.kill(first, signal.SIGKILL)

    def is_replaced() -> bool:
        exchange()
        network = host.context.connection.network
        return network.connected and network.pid != first

    wait_until(is_replaced, timeout=DEADLINE_S)
    wait_until(has_crossed(10), timeout=DEADLINE_S)
    for frame in local.poll():
        local_seqs.append(frame.seq)
    committed = producer.next_seq
    # The local stream missed nothing, and no client lost a lease or a mapping.
    assert (producer.epoch, remote.epoch) == epochs
    assert host.context.connection.conductor.status().connections == 1
    assert local.ledger().dropped.get("gap", 0) == 0
    assert local_seqs == list(range(local_seqs[0], committed))

    def final_ledger() -> Any:
        ledger = row(receiver)["ledger"]
        return ledger if ledger and ledger["published"] == committed else None

    ledger = wait_until(final_ledger, timeout=DEADLINE_S)
    assert ledger["exact"]
    wait_until(lambda: "the media driver for UDP" in caplog.text, timeout=DEADLINE_S)
    assert ledger["delivered"] == row(receiver)["delivered"]
    assert committed == ledger["delivered"] + sum(ledger["dropped"].values())


def test_embedded_media_driver_refuses_udp(aeron_dir: Path, shm_base: Path, wait_until: Callable[..., Any]):
    tables = (ContextSettings, AeronSettings, ShmSettings, ServiceSettings, DriverSettings)
    config = Config.load(*tables, tables={"aeron": {"network_dir": str(aeron_dir)}}, environ={})
    with tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=shm_base, config=config) as ctx:
        publication = ctx.connection.publication(StreamAddress(channel(free_port()), 77))
        failure = wait_until(lambda: publication.failure, timeout=DEADLINE_S)
        assert "serves aeron:ipc only" in failure
        assert "tensorpool media-driver" in failure
        subscription = ctx.connection.subscription(StreamAddress(channel(free_port()), 77))
        assert "serves aeron:ipc only" in wait_until(lambda: subscription.failure, timeout=DEADLINE_S)
        assert ctx.connection.connected


_PROGRAM = """
import sys
import tensorpool as tp
from tensorpool.transport import StreamAddress

with tp.open("standalone", aeron_dir=sys.argv[1], shm_base_dir=sys.argv[2]) as ctx:
    publication = ctx.connection.publication(StreamAddress(sys.argv[3], 77))
    ctx.connection.wait_ready(publication, timeout=60)
    print(ctx.connection.network.dir, flush=True)
    sys.stdin.read()
"""


@pytest.mark.leaves_files("a killed program leaves the directory of its own media driver")
def test_network_driver_ends_with_a_killed_program(
    aeron_dir: Path, shm_base: Path, wait_until: Callable[..., Any]
):
    arguments = [sys.executable, "-c", _PROGRAM, str(aeron_dir), str(shm_base), channel(free_port())]
    program = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with program:
        assert program.stdout is not None
        directory = Path(program.stdout.readline().strip())
        assert directory.name == f"{aeron_dir.name}-udp-0"
        mark = read_mark_file(directory)
        assert mark is not None
        assert mark.pid != program.pid
        program.kill()
    wait_until(lambda: not directory.exists(), timeout=DEADLINE_S)
    wait_until(lambda: not mark.is_in_use(), timeout=DEADLINE_S)
    leaks.remove(aeron_dir)


def test_network_driver_ends_in_order_beside_a_forked_child(
    aeron_dir: Path, shm_base: Path, wait_until: Callable[..., Any]
):
    """The child does not hold the pipe whose end is the order to end: nothing has to be killed."""
    with tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx:
        publication = ctx.connection.publication(StreamAddress(channel(free_port()), 77))
        ctx.connection.wait_ready(publication, timeout=DEADLINE_S)
        directory = Path(ctx.connection.network.dir or "")
        assert directory.is_dir()
        until_closed, end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(end)
            os.read(until_closed, 1)
            os._exit(0)
        os.close(until_closed)
    # A media driver that was killed leaves its directory.
    remains = directory.exists()
    os.close(end)
    os.waitpid(child, 0)
    leaks.remove(directory)
    assert not remains


@pytest.mark.leaves_files("a killed media driver leaves its directory")
def test_next_network_driver_removes_the_leftovers_of_all(
    aeron_dir: Path, shm_base: Path, wait_until: Callable[..., Any]
):
    def start(number: int) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-c", _PROGRAM, str(aeron_dir), str(shm_base), channel(free_port())]
        program = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        assert program.stdout.readline().strip() == network_dir(str(aeron_dir), number)
        return program

    with tp.MediaDriver(str(aeron_dir)):
        programs = [start(0), start(1)]
        for number, program in enumerate(programs):
            mark = read_mark_file(network_dir(str(aeron_dir), number))
            assert mark is not None
            # Stopped first: it would clean up when its parent is gone.
            os.kill(mark.pid, signal.SIGSTOP)
            with program:
                program.kill()
            os.kill(mark.pid, signal.SIGKILL)
        assert network_dirs(str(aeron_dir)) == [network_dir(str(aeron_dir), number) for number in (0, 1)]
        program = start(0)
        with program:
            wait_until(
                lambda: network_dirs(str(aeron_dir)) == [network_dir(str(aeron_dir), 0)], timeout=DEADLINE_S
            )
            program.communicate()
    leaks.remove(aeron_dir)
