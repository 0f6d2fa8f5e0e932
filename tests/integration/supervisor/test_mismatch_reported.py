"""Mismatches of the ledger: the supervisor publishes each of them once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import tensorpool as tp
from tensorpool import _native
from tensorpool.runtime.runner import Runner
from tensorpool.sbe import STATUS_KEY, ConsumerStatus, ReasonCount, TimeOrigin
from tensorpool.service import Event
from tensorpool.supervisor.agent import SupervisorAgent
from tensorpool.supervisor.config import SupervisorSettings

# Eight of ten frames are received, and one of the other two has a reason.
STATUS: dict[str, Any] = {
    "consumer_id": 7, "pid": 1, "epoch": 1, "first_seq": 0, "last_seq": 9, "span": 10,
    "received": 8, "dropped": (ReasonCount(frames=1, reason="late"),), "polls": 3, "is_final": False,
    "latency_since": TimeOrigin.NOTHING, "latency_excluded": 0,
    **dict.fromkeys(("interval_frames", "interval_p50_ns", "interval_p99_ns", "interval_max_ns"), 0),
    **dict.fromkeys(("total_frames", "total_p50_ns", "total_p99_ns", "total_max_ns"), 0),
}  # fmt: skip


def test_status_report_that_does_not_add_up_is_published_once(
    hub: tp.Context, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    services = hub.service_streams
    report = ConsumerStatus(stream_id=free_stream_id, **STATUS)
    status = Event(f"service:consumer:{free_stream_id}", STATUS_KEY, report.encode())
    settings = SupervisorSettings(evaluation_period_ns=100_000_000)
    agent = SupervisorAgent(hub, settings=settings)
    mailbox = _native.Mailbox(
        hub.connection.conductor, services.status_channel, services.status, ["service:supervisor"]
    )
    publication = _native.Publication(hub.connection.conductor, services.status_channel, services.status)
    runner = Runner(agent)
    runner.start()
    received: list[Any] = []

    def has_mismatch() -> bool:
        publication.offer(status.encode())
        received.extend(Event.decode(message) for message in mailbox.take(64))
        return any(event.key == "mismatch" for event in received)

    try:
        wait_until(has_mismatch, timeout=60)
        first_ns = agent.latest.now_ns
        # The mismatch lasts for more evaluations, and is not published again.
        wait_until(lambda: has_mismatch() and agent.latest.now_ns - first_ns > 2_000_000_000, timeout=60)
    finally:
        runner.close()
        mailbox.close()
        publication.close()
    [published] = [json.loads(str(event.value)) for event in received if event.key == "mismatch"]
    assert published == {
        "stream_id": free_stream_id, "path": "consumer", "who": "7", "problem": "1 frames unaccounted for",
    }  # fmt: skip
    assert agent.counters.snapshot()["mismatches"] == 1
    ledger = agent.status()["ledger"]
    assert ledger is not None
    assert ledger["paths"]["mismatch"] == 1
    [notice] = [notice for notice in agent.latest.notices if notice.kind == "mismatch"]
    assert (notice.stream_id, notice.text) == (free_stream_id, "consumer 7: 1 frames unaccounted for")
