"""The state machine under any sequence of events: the rules of the specification hold after each."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tensorpool.driver.config import StreamSettings
from tensorpool.driver.leases import Refusal
from tensorpool.driver.lifecycle import Job
from tensorpool.driver.plan import StreamLayout
from tensorpool.sbe import (
    LeaseRevokeReason,
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachResponse,
    ShmLeaseRevoked,
)
from tests.unit.driver.state_harness import StateHarness

STREAMS = st.sampled_from([10_000, 20_000, 20_001, 20_002])
CLIENTS = st.integers(1, 6)
ROLES = st.sampled_from(Role)
SHAPE = StreamLayout(8, (4096,))
QUOTA = 5 * SHAPE.nbytes
STREAM_QUOTA = 3 * SHAPE.nbytes


class AnySequence(RuleBasedStateMachine):
    """Clients attach, detach, stop their keepalives and end; file work is delayed or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = StateHarness(
            nslots=8,
            pools=(4096,),
            quota_bytes=QUOTA,
            max_leases_per_stream=4,
            max_streams=2,
            release_idle_ns=10_000_000_000,
            recreate_at_start=True,
            streams=(StreamSettings(stream_id=10_000, pools=(4096,), quota_bytes=STREAM_QUOTA),),
        )
        self.granted: dict[int, tuple[ShmAttachResponse, int, Role]] = {}
        self.correlation_id: dict[int, tuple[int, Role]] = {}
        self.seen = 0
        self.ended: Counter[int] = Counter()
        self.epochs: dict[int, int] = {}
        """The last epoch of each stream in any message."""
        self.given: set[int] = set()
        self.floor: dict[int, int] = {}
        """The epoch that the next one must exceed, after the end of a producer."""

    @initialize()
    def start(self) -> None:
        self.harness.perform(self.harness.state.on_start(self.harness.now))

    # --- events

    @rule(stream=STREAMS, client=CLIENTS, role=ROLES, mode=st.sampled_from([*PublishMode, None]))
    def attach(self, stream: int, client: int, role: Role, mode: PublishMode | None) -> None:
        correlation = self.harness.request_attach(stream, client, role, mode=mode)
        self.correlation_id[correlation] = (client, role)

    @rule(count=st.integers(1, 5))
    def file_work(self, count: int) -> None:
        self.harness.work(count)

    @rule(fails=st.booleans())
    def disk(self, fails: bool) -> None:
        self.harness.refuse_files = Refusal(ResponseCode.INTERNAL_ERROR, "full") if fails else None

    @rule(fails=st.booleans())
    def mapping(self, fails: bool) -> None:
        self.harness.announce_failure = "cannot map" if fails else None

    @rule(pick=st.integers(0, 20), right=st.booleans())
    def keep_alive(self, pick: int, right: bool) -> None:
        if self.granted:
            answer, client, role = list(self.granted.values())[pick % len(self.granted)]
            self.harness.keep_alive(answer, client if right else 99, role)

    @rule(pick=st.integers(0, 20), correlation=st.integers(1, 1 << 40))
    def detach(self, pick: int, correlation: int) -> None:
        if self.granted:
            answer, client, role = list(self.granted.values())[pick % len(self.granted)]
            self.harness.detach(answer, client, role, correlation)

    @rule(stream=STREAMS, off=st.integers(0, 1))
    def die(self, stream: int, off: int) -> None:
        record = self.harness.state.records.get(stream)
        if record is not None and record.files is not None:
            self.harness.perform(
                self.harness.state.on_producer_exit(stream, record.files.epoch - off, self.harness.now)
            )

    @rule(stream=STREAMS, client=CLIENTS, which=st.integers(0, 2))
    def revoke(self, stream: int, client: int, which: int) -> None:
        criteria: dict[str, Any] = [
            {"stream_id": stream},
            {"client_id": client},
            {"lease_id": pick_lease(self)},
        ][which]
        self.harness.perform(self.harness.state.revoke(self.harness.now, **criteria)[1])

    @rule(stream=STREAMS, nslots=st.sampled_from([4, 8]))
    def provision(self, stream: int, nslots: int) -> None:
        self.harness.perform(self.harness.state.provision(stream, self.harness.now, nslots=nslots)[1])

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.5, 12.0]), drained=st.booleans())
    def pass_time(self, seconds: float, drained: bool) -> None:
        self.harness.tick(seconds, drained=drained)

    # --- invariants

    @invariant()
    def promises_hold(self) -> None:
        self.poll()
        harness = self.harness
        leases = list(harness.state.leases)
        producers = [lease.stream_id for lease in leases if lease.role is Role.PRODUCER]
        assert len(producers) == len(set(producers)), "one producer a stream"
        assert len({lease.client_id for lease in leases}) == len(leases), "one lease a client"
        for lease in leases:
            assert lease.state.is_live
            assert (lease.lease_id in self.granted) is not lease.is_reserved
        assert {lease_id for lease_id in self.granted if not self.ended[lease_id]} == {
            lease.lease_id for lease in leases if not lease.is_reserved
        }
        for record in harness.state.records:
            on_disk = harness.directories.get(record.stream_id, set())
            to_go = {job.directory for job in harness.jobs if hasattr(job, "directory")}
            assert len(on_disk - to_go) <= 2, "one live and one superseded directory"
            assert record.nbytes <= QUOTA
            if record.is_static:
                assert record.nbytes <= STREAM_QUOTA
            if record.pending:
                assert record.job is not Job.NONE, "who waits, waits for something"
            producer = harness.state.leases.producer_of(record.stream_id)
            if producer is not None and not producer.is_reserved:
                assert record.files is not None
                assert harness.announced[record.stream_id] == (record.files.epoch, producer.client_id)
        assert harness.state.records.total_bytes <= QUOTA
        assert harness.state.records.total_bytes == sum(record.nbytes for record in harness.state.records)
        assert harness.state.records.dynamic <= 2
        assert harness.state.records.dynamic == sum(not record.is_static for record in harness.state.records)
        for stream_id in harness.announced:
            assert harness.state.records.get(stream_id) is not None, "only what is there is announced"

    def poll(self) -> None:
        """Messages and announces since the last check, in order."""
        harness = self.harness
        for message in harness.sent[self.seen :]:
            if isinstance(message, ShmAttachResponse) and message.code is ResponseCode.OK:
                assert message.lease_id is not None
                assert message.stream_id is not None
                assert message.epoch is not None
                if message.lease_id not in self.given:
                    self.given.add(message.lease_id)
                    client, role = self.correlation_id[message.correlation_id]
                    self.granted[message.lease_id] = (message, client, role)
                    floor = self.floor.get(message.stream_id, 0)
                    before = self.epochs.get(message.stream_id, 0)
                    assert message.epoch > floor, "the epoch grows when a producer ends"
                    assert message.epoch >= before, "epochs only grow"
                    self.epochs[message.stream_id] = message.epoch
            elif isinstance(message, ShmLeaseRevoked) and message.lease_id in self.granted:
                is_stray = "no such lease" in message.error_message
                if not is_stray:
                    self.ended[message.lease_id] += 1
                    if message.role is Role.PRODUCER:
                        self.floor[message.stream_id] = self.epochs[message.stream_id]
                assert self.ended[message.lease_id] == 1, "every end has one notice"
                assert message.reason in LeaseRevokeReason
        self.seen = len(harness.sent)
        for stream_id in {stream for stream, _, _ in harness.history}:
            # Every attach, end, change of layout and creation of files causes one announce.
            epochs = [epoch for stream, epoch, _ in harness.history if stream == stream_id]
            assert all(first < second for first, second in pairwise(epochs)), "the epoch grows at each event"

    def teardown(self) -> None:
        harness = self.harness
        harness.refuse_files = harness.announce_failure = None
        # Without events, all pending attaches end and no lease outlives its grace.
        for _ in range(4):
            harness.tick(20)
            harness.work()
        self.promises_hold()
        assert len(harness.state.leases) == 0
        assert all(len(paths) <= 1 for paths in harness.directories.values())
        assert not any(paths for stream, paths in harness.directories.items() if stream != 10_000)
        for lease_id in self.granted:
            assert self.ended[lease_id] == 1


def pick_lease(machine: AnySequence) -> int:
    return next(iter(machine.granted), 1)


TestAnySequence = pytest.mark.requirement(
    "driver-4.1-1", "driver-4.8-1", "driver-4.8-4", "driver-4.9-4", "driver-5-1", "driver-6-1", "driver-7-2"
)(AnySequence.TestCase)
TestAnySequence.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
