"""Floods of attach requests, hellos and discovery requests by an untrusted client."""

from __future__ import annotations

import time

import tensorpool as tp
from tensorpool.driver.client import SERVICE, DriverStatus, lease_rows
from tensorpool.service import ServiceClient
from tests.chaos.stage import END_TIMEOUT_S, Program, Stage
from tests.leaks import wait_for

SHARE = 1.5
# What the limits let floods take: half of the driver's quota for regions without a client, and 64 response
# streams of 3 MiB, with those that the media driver has not removed yet.
MEMORY_BYTES = 1 << 30
# The default: what a busy machine leaves to a client is enough for a lease of this length.
LEASE_GRACE_S = 3.0
_KINDS = ("attach requests", "hellos", "discovery requests")
_REPLY_TIMEOUT_S = 10.0
_FRAMES = 20
# Requests that the driver put off: the flood is well above the limit.
_POSTPONED = 1000


def run(stage: Stage) -> None:
    """Clients that behave keep their leases and get their frames all the time. New ones attach in the middle
    of a flood, at the first try and so within `attach_timeout`. A flood gets no more than its share of the
    leases, and what it reserved goes away."""
    rng, checker = stage.rng, stage.checker
    stage.start("producer", hz=200)
    consumers = [stage.start("consumer"), stage.start("consumer")]
    checker.expect(stage.frames_flow(), "no frames flow before the first flood")
    before = _wait_leases(stage, 3)
    checker.expect(len(before) == 3, f"three clients have the leases {before}")
    stage.restart_clock()
    number = 0
    while stage.has_time or number < len(_KINDS):
        kind = _KINDS[number % len(_KINDS)]
        number += 1
        running = stage.work / f"flood-{number}"
        flood = stage.start("flood", kind=kind, seed=rng.randrange(1 << 30), running=str(running))
        checker.expect(wait_for(running.exists, timeout=END_TIMEOUT_S), f"a flood of {kind} sends nothing")
        _check_in_a_flood(stage, kind, consumers)
        stage.programs_live(f"in a flood of {kind}")
        checker.count(f"{kind} sent", int(stage.end(flood).get("sent", 0)))
        after = _wait_leases(stage, 3)
        checker.expect(after == before, f"a flood of {kind} changed the leases {before} to {after}")
    checker.expect(stage.frames_flow(), "no frames flow after the last flood")


def _check_in_a_flood(stage: Stage, kind: str, consumers: list[Program]) -> None:
    """What holds during a flood: for those that are there, and for those that come."""
    checker = stage.checker
    with tp.open(**stage.options) as context, context.service(SERVICE, timeout=END_TIMEOUT_S) as driver:
        start = _postponed(driver)
        if kind == "attach requests":
            checker.expect(
                wait_for(lambda: _postponed(driver) - start >= _POSTPONED, timeout=END_TIMEOUT_S),
                "the driver handles every attach request of a flood at once",
            )
        time.sleep(stage.rng.uniform(1.0, 3.0))
        # One call each, without another try: it ends within `attach_timeout`, with a lease or an error.
        own_stream = stage.stream_id + 1
        try:
            with (
                context.producer(own_stream, pools=["4KiB"]),
                context.consumer(own_stream),
                context.consumer(stage.stream_id) as late_consumer,
            ):
                flows = wait_for(lambda: late_consumer.poll(8), timeout=END_TIMEOUT_S)
            checker.expect(flows, f"a new consumer gets no frames in a flood of {kind}")
            checker.count("clients attached in a flood", 3)
        except tp.TensorPoolError as error:
            checker.expect(False, f"a new client does not attach in a flood of {kind}: {error}")
        status = _status(driver)
        checker.expect(
            status["leases"] <= status["max_leases"] // 2,
            f"a flood of {kind} has most of the leases: {status['leases']} of {status['max_leases']}",
        )
        for consumer in consumers:
            checker.expect(
                stage.advances(consumer, "checked", _FRAMES),
                f"a consumer gets no frames in a flood of {kind}",
            )


def _status(driver: ServiceClient) -> DriverStatus:
    status: DriverStatus = driver.call("status")
    return status


def _postponed(driver: ServiceClient) -> int:
    count = _status(driver)["counters"]["postponed"]
    assert isinstance(count, int)
    return count


def _wait_leases(stage: Stage, count: int) -> set[str]:
    """The ids of all leases of the driver, once there are not more than these."""
    deadline = time.monotonic() + END_TIMEOUT_S
    leases: set[str] = set()
    while time.monotonic() < deadline:
        try:
            with (
                tp.open(**stage.options) as context,
                context.service(SERVICE, timeout=_REPLY_TIMEOUT_S) as client,
            ):
                leases = {row["lease_id"] for row in lease_rows(client)}
        except tp.TensorPoolError:
            leases = set()
        if len(leases) == count:
            break
        time.sleep(0.1)
    return leases
