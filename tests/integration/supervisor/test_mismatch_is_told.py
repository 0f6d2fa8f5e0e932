"""Frames that nobody accounts for: a supervisor says so, once, to whoever listens."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import tensorpool as tp
from tensorpool import _native
from tensorpool.monitor import LedgerMonitor
from tensorpool.monitor.listener import model_limits
from tensorpool.runtime.runner import Runner
from tensorpool.sbe import STATUS_KEY, ConsumerStatus, ReasonCount, TimeOrigin
from tensorpool.service import Event
from tensorpool.supervisor.agent import SupervisorAgent
from tensorpool.supervisor.config import SupervisorSettings

# Eight of ten frames received, and a reason for one of the other two.
REPORT: dict[str, Any] = {
    "consumer_id": 7, "pid": 1, "epoch": 1, "first_seq": 0, "last_seq": 9, "span": 10,
    "received": 8, "dropped": (ReasonCount(frames=1, reason="late"),), "polls": 3, "is_final": False,
    "latency_since": TimeOrigin.NOTHING, "latency_excluded": 0,
    **dict.fromkeys(("interval_frames", "interval_p50_ns", "interval_p99_ns", "interval_max_ns"), 0),
    **dict.fromkeys(("total_frames", "total_p50_ns", "total_p99_ns", "total_max_ns"), 0),
}  # fmt: skip


def test_an_account_that_does_not_add_up_is_told_once(
    hub: tp.Context, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    services = hub.service_streams
    report = ConsumerStatus(stream_id=free_stream_id, **REPORT)
    status = Event(f"service:consumer:{free_stream_id}", STATUS_KEY, report.encode())
    settings = SupervisorSettings(look_ns=100_000_000)
    agent = SupervisorAgent(hub, settings=settings, audit=LedgerMonitor(model_limits(hub)))
    mailbox = _native.Mailbox(
        hub.connection.conductor, services.channel, services.status, ["service:supervisor"]
    )
    voice = _native.Publication(hub.connection.conductor, services.channel, services.status)
    runner = Runner(agent)
    runner.start()
    heard: list[Any] = []

    def goes_on() -> bool:
        voice.offer(status.encode())
        heard.extend(Event.decode(one) for one in mailbox.take(64))
        return any(one.key == "mismatch" for one in heard)

    try:
        wait_until(goes_on, timeout=60)
        looks = agent.latest.now_ns
        # It goes on not to fit for some more looks, and that is no news.
        wait_until(lambda: goes_on() and agent.latest.now_ns - looks > 2_000_000_000, timeout=60)
    finally:
        runner.close()
        mailbox.close()
        voice.close()
    [told] = [json.loads(str(one.value)) for one in heard if one.key == "mismatch"]
    assert told == {
        "stream_id": free_stream_id, "path": "consumer", "who": "7", "problem": "1 frames unaccounted for",
    }  # fmt: skip
    assert agent.counters.snapshot()["mismatches"] == 1
    assert agent.status()["ledger"]["paths"]["mismatch"] == 1
    [notice] = [one for one in agent.latest.notices if one.kind == "mismatch"]
    assert (notice.stream_id, notice.text) == (free_stream_id, "consumer 7: 1 frames unaccounted for")
