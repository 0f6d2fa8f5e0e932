"""Every role beside a peer with other habits: no lease is lost, no storm, no error, no missing frame."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import recording
from tensorpool.monitor.listener import SystemMonitor
from tensorpool.runtime.runner import Runner
from tensorpool.supervisor.agent import SupervisorAgent
from tensorpool.supervisor.config import Rule, SupervisorSettings
from tests.integration.bridge.hosts import Host, Pair, flows, open_host, row
from tests.integration.dataplane.hostile import HostileProducer
from tests.integration.peers.foreign_peer import ForeignPeer
from tests.ports import free_port

PERIOD_S = 0.2
SECONDS = 4.0
DEADLINE_S = 60.0
MAX_GROWTH_BYTES = 32 << 20


def lease_ids(*endpoints: tp.Producer | tp.Consumer) -> list[int | None]:
    leases = [endpoint.lease() for endpoint in endpoints]
    return [None if lease is None else lease.lease_id for lease in leases]


def anonymous_bytes() -> int:
    """Memory of this process without shared memory and files."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert found is not None
    return int(found[1]) << 10


@pytest.fixture
def options(aeron_dir: Path, shm_base: Path) -> dict[str, Any]:
    return {"aeron_dir": aeron_dir, "shm_base_dir": shm_base, "announce_period": PERIOD_S}


def test_roles_keep_working_beside_a_foreign_peer(
    options: dict[str, Any],
    free_stream_id: int,
    wait_until: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        tp.open("embedded", **options) as hub,
        tp.open("driver", **options) as other,
        hub.producer(free_stream_id, name="camera-1", pools=["4KiB"], nslots=64) as camera,
        other.consumer(free_stream_id) as frames,
        hub.service("driver", timeout=60) as driver,
    ):
        monitor = SystemMonitor(other.connection)
        try:
            camera.wait_for_consumer(60)
            wait_until(lambda: frames.epoch == camera.epoch)
            before = lease_ids(camera, frames)
            started = time.monotonic()
            received = offered = answers = 0
            warm_bytes = 0
            with ForeignPeer(other, free_stream_id) as peer:
                while (elapsed := time.monotonic() - started) < SECONDS or peer.control_polls < 2:
                    assert elapsed < 60
                    camera.offer(np.full(16, offered, np.int64))
                    offered += 1
                    received += len(frames.poll())
                    monitor.poll()
                    found = other.discover(name="camera-1", timeout=60)
                    answers += len(found)
                    driver.ping()
                    frames.wait(0.01)
                    if not warm_bytes and elapsed > SECONDS / 4:
                        warm_bytes = anonymous_bytes()
                announces, remaps = peer.announces, peer.remaps
                seconds = time.monotonic() - started
            received += len(frames.poll())
            # Leases are the same ones, and nothing was lost.
            assert lease_ids(camera, frames) == before
            assert camera.attached
            ledger = frames.ledger()
            assert received == offered
            assert ledger.balanced
            assert answers == offered
            # The peer had mapped the regions, again and again.
            assert remaps == announces >= 3
            # One announce a period, and at most ten a second for hellos of new consumers.
            assert announces <= seconds * (1 / PERIOD_S + 10) + 5
            status: Any = driver.call("status")
            assert status["discovery"]["invalid"]["malformed"] >= 1
            # Its leases expire, as it keeps none of them.
            assert status["leases"] <= 2 + 10 * seconds
            view = monitor.snapshot()
            assert free_stream_id in {stream.stream_id for stream in view.streams}
            # Invented streams and consumers take no memory for long.
            assert anonymous_bytes() - warm_bytes < MAX_GROWTH_BYTES
        finally:
            monitor.close()
    assert [record for record in caplog.records if record.exc_info] == []


def test_roles_get_by_while_a_foreign_peer_never_polls_the_control_stream(
    options: dict[str, Any], free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    """Its tethered subscription stops the shared log: our clients continue on publications of their own."""
    with (
        tp.open("embedded", **options) as hub,
        tp.open("driver", **options) as other,
        hub.producer(free_stream_id, name="camera-1", pools=["4KiB"], nslots=64) as camera,
        other.consumer(free_stream_id) as frames,
        hub.service("driver", timeout=DEADLINE_S) as driver,
    ):
        camera.wait_for_consumer(DEADLINE_S)
        wait_until(lambda: frames.epoch == camera.epoch)
        before = lease_ids(camera, frames)

        def fault() -> str | None:
            status: Any = driver.call("status")
            found = status["control_fault"]
            return found if found is None else str(found)

        with ForeignPeer(other, free_stream_id, polls_control=False) as peer:
            assert "full for" in wait_until(fault, timeout=DEADLINE_S)
            status: Any = driver.call("status")
            # Twice as long as a lease lasts without a keepalive.
            lease_s = status["keepalive_s"] * status["grace"]
            started, numbers = time.monotonic(), list[int]()
            while time.monotonic() - started < 2 * lease_s:
                assert camera.offer(np.array([camera.next_seq])).outcome == "published"
                numbers.append(int(frames.receive(DEADLINE_S).copy()[0]))
                # There is none: a pause between two frames.
                frames.wait(0.01)
            assert numbers == list(range(len(numbers)))
            assert "full for" in str(fault())
            assert lease_ids(camera, frames) == before
            # A client that comes now gets its lease, and finds the stream.
            with other.consumer(free_stream_id) as late:
                wait_until(lambda: late.epoch == camera.epoch, timeout=DEADLINE_S)
            assert [stream.stream_id for stream in other.discover(name="camera-1", timeout=DEADLINE_S)] == [
                free_stream_id
            ]
            assert (peer.control_polls, peer.remaps) == (0, peer.announces)
            assert peer.remaps >= 3
        wait_until(lambda: fault() is None, timeout=DEADLINE_S)
        assert lease_ids(camera, frames) == before
        assert frames.ledger().balanced


def test_announces_on_the_control_stream_are_followed(
    options: dict[str, Any],
    shm_base: Path,
    free_stream_ids: Callable[[], int],
    wait_until: Callable[..., Any],
) -> None:
    """Some implementations have one stream for both. A driver of ours shares it with a foreign producer."""
    ours, theirs = free_stream_ids(), free_stream_ids()
    control = tp.StreamIds().control
    foreign_base = shm_base / "foreign"
    foreign_base.mkdir()
    shared: dict[str, Any] = {**options, "stream_ids": tp.StreamIds(announce=control)}
    with (
        tp.open("embedded", **shared) as hub,
        tp.open("standalone", **{**shared, "shm_base_dir": foreign_base}) as other,
        hub.producer(ours, name="camera-1", pools=["4KiB"], nslots=64) as camera,
        hub.consumer(ours) as frames,
        other.consumer(theirs) as foreign_frames,
        HostileProducer(other, foreign_base, theirs) as foreign,
        SystemMonitor(hub.connection) as monitor,
        ForeignPeer(hub, ours, seed=3) as peer,
    ):
        foreign.announce_until(lambda: foreign_frames.epoch == foreign.epoch)
        assert camera.wait_for_consumer(DEADLINE_S)
        before = lease_ids(camera, frames)
        for number in range(100):
            foreign.refresh_activity()
            foreign.announce()
            foreign.publish(number, np.full(5, number, np.uint8))
            assert foreign_frames.receive(DEADLINE_S).copy().tolist() == [number] * 5
            assert camera.offer(np.full(5, number, np.uint8)).outcome == "published"
            assert frames.receive(DEADLINE_S).copy().tolist() == [number] * 5
            monitor.poll()
        assert lease_ids(camera, frames) == before
        assert {ours, theirs} <= {stream.stream_id for stream in monitor.snapshot().streams}
        assert [stream.stream_id for stream in hub.discover(name="camera-1", timeout=DEADLINE_S)] == [ours]
        wait_until(lambda: peer.remaps >= 3, timeout=DEADLINE_S)
    foreign_base.rmdir()


def test_recorder_bridge_and_supervisor_keep_working_beside_a_foreign_peer(
    options: dict[str, Any],
    aeron_dir: Path,
    shm_base: Path,
    tmp_path: Path,
    free_stream_ids: Callable[[], int],
    wait_until: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, dest = free_stream_ids(), free_stream_ids()
    rule = Rule(name="slow", when="drops", above=1.0, then="limit", max_rate_hz=1)
    root = tmp_path / "run"
    with caplog.at_level(logging.WARNING), ExitStack() as stack:
        hub = stack.enter_context(tp.open("embedded", **options))
        here = Host("here", stack.enter_context(tp.open("driver", **options)), stack)
        there = open_host("there", Path(f"{aeron_dir}-b"), shm_base / "b", stack)
        camera = stack.enter_context(hub.producer(source, pools=["4KiB"], nslots=256))
        supervisor = SupervisorAgent(
            here.context, settings=SupervisorSettings(rules=(rule,), evaluation_period_ns=100_000_000)
        )
        stack.enter_context(Runner(supervisor))
        pair = Pair(here, there, (free_port(), free_port(), free_port()), wait_until)
        sender, receiver = pair.connect(source, dest)
        remote = there.context.consumer(dest)
        wait_until(lambda: flows(sender, receiver, camera, remote), timeout=DEADLINE_S)
        recorder = stack.enter_context(here.context.record(root, streams=[source]))
        wait_until(lambda: recorder.mapped().get(source) is not None, timeout=DEADLINE_S)
        started, first, received = time.monotonic(), camera.next_seq, 0
        with ForeignPeer(here.context, source, seed=2) as peer:
            while (elapsed := time.monotonic() - started) < SECONDS or peer.control_polls < 2:
                assert elapsed < 60
                camera.offer(np.full(16, camera.next_seq, np.int64))
                received += len(remote.poll())
                remote.wait(0.01)
        last = camera.next_seq

        def is_complete() -> bool:
            nonlocal received
            received += len(remote.poll())
            return received == last - first

        wait_until(is_complete, timeout=DEADLINE_S)
        wait_until(lambda: recorder.stats().rows == last - first, timeout=DEADLINE_S)
        assert recorder.stats().lost == 0
        assert row(receiver)["dropped"] == {}
        # The peer's consumers report no losses: no order was given.
        assert not supervisor.decisions
        assert peer.remaps >= 3
    with recording.open(root) as opened:
        assert [frame.seq for frame in opened.frames(source)] == list(range(first, last))
    assert [record for record in caplog.records if record.exc_info] == []
    (shm_base / "b").rmdir()
