"""Limits on requests: rates, postponed requests, reserved leases, quota; with floods in the state machine."""

from __future__ import annotations

from typing import Any

from tensorpool.driver.actions import Action, Send
from tensorpool.driver.plan import StreamLayout
from tensorpool.driver.requests import RateLimit, RequestLimiter
from tensorpool.sbe import ResponseCode, Role, ShmAttachRequest, ShmLeaseKeepalive
from tensorpool.sbe.driver import HugepagesPolicy, PublishMode, ShmAttachRequestR2

from .state_harness import S, StateHarness

MS = 1_000_000


def attach_request(number: int, stream_id: int = 20_000) -> bytes:
    return ShmAttachRequest(
        correlation_id=number,
        stream_id=stream_id,
        client_id=number,
        role=Role.CONSUMER,
        publish_mode=PublishMode.EXISTING_OR_CREATE,
    ).encode()


def admits(
    limiter: RequestLimiter, message: bytes, image: int, now_ns: int, *, is_pressed: bool = False
) -> bool:
    is_repetition = limiter.is_repetition(message, now_ns)
    return limiter.admits(image, now_ns, is_repetition=is_repetition, is_pressed=is_pressed)


# --- rates


def test_rate_limit_allows_a_burst_and_then_its_rate() -> None:
    limit = RateLimit(100, burst=10)
    assert sum(limit.take(S) for _ in range(1000)) == 11
    assert sum(limit.take(S + i * MS) for i in range(1, 1001)) == 100
    assert sum(limit.take(60 * S) for _ in range(1000)) == 11, "at most a burst is kept"


def test_limiter_postpones_what_exceeds_the_rate_until_it_is_repeated() -> None:
    limiter = RequestLimiter(per_second=10, per_image=10)
    flood = [attach_request(number) for number in range(1, 1000)]
    admitted = [admits(limiter, message, 7, S) for message in flood]
    assert (sum(admitted), admitted[:21]) == (21, [True] * 21)
    client = attach_request(5000)
    assert not admits(limiter, client, 7, S)
    assert not admits(limiter, client, 7, S + 10 * MS), "too soon for a client"
    assert admits(limiter, client, 7, S + 100 * MS)


def test_flood_that_loops_over_few_requests_takes_no_repetitions_of_a_client() -> None:
    limiter = RequestLimiter(per_second=100, per_image=100)
    flood = [attach_request(number) for number in range(1, 11)]
    client = attach_request(5000)
    # Two seconds of 10,000 requests a second, the same ten again and again, from the image of the client.
    sent = [admits(limiter, flood[i % 10], 7, S + i * MS // 10) for i in range(20_000)]
    repeated = 2 * len(flood)
    assert sum(sent[1_000:]) < 2 * 100 + 2 + repeated, (
        "only what the limit lets pass at once, and one repetition a second"
    )
    admits(limiter, flood[0], 7, 3 * S)
    assert not admits(limiter, client, 7, 3 * S)
    for i in range(1_001):
        admits(limiter, flood[i % 10], 7, 3 * S + i * MS // 10)
    assert admits(limiter, client, 7, 3 * S + 100 * MS)


def test_client_that_repeats_the_request_of_another_does_not_keep_it_out() -> None:
    limiter = RequestLimiter(per_second=100, per_image=100)
    client = attach_request(5000)
    # 40 ms apart, from the image of the client: sooner than any client repeats a request.
    sent = [admits(limiter, client, 7, S + i * 40 * MS, is_pressed=True) for i in range(101)]
    assert [i * 40 for i, is_admitted in enumerate(sent) if is_admitted] == [1_000, 2_000, 3_000, 4_000]


def test_one_image_does_not_take_all_repetitions() -> None:
    limiter = RequestLimiter(per_second=100, per_image=100)
    flood = [attach_request(number) for number in range(1, 5_000)]
    # Each is repeated as slowly as a client would, and there are far too many of them.
    for second in range(1, 60):
        for message in flood:
            admits(limiter, message, 7, second * S, is_pressed=True)
    client = attach_request(90_000)
    assert not admits(limiter, client, 8, 60 * S, is_pressed=True)
    for message in flood:
        admits(limiter, message, 7, 60 * S + 90 * MS, is_pressed=True)
    assert admits(limiter, client, 8, 60 * S + 100 * MS, is_pressed=True)


def test_request_in_the_other_revision_is_a_repetition() -> None:
    limiter = RequestLimiter(per_second=1, per_image=1)
    common: dict[str, Any] = {
        "correlation_id": 5, "stream_id": 20_000, "client_id": 9, "role": Role.CONSUMER,
    }  # fmt: skip
    first = ShmAttachRequest(**common, publish_mode=PublishMode.EXISTING_OR_CREATE)
    second = ShmAttachRequestR2(
        **common,
        publish_mode=PublishMode.EXISTING_OR_CREATE,
        hugepages_policy=HugepagesPolicy.UNSPECIFIED,
    )
    assert not limiter.is_repetition(first.encode(), S)
    assert limiter.is_repetition(second.encode(), S + 100 * MS)
    other = ShmAttachRequest(**common | {"correlation_id": 6})
    assert not limiter.is_repetition(other.encode(), S + 200 * MS)


def test_limiter_counts_each_image() -> None:
    limiter = RequestLimiter(per_second=1000, per_image=10)
    assert sum(admits(limiter, attach_request(n), 1, S) for n in range(1, 100)) == 21
    assert sum(admits(limiter, attach_request(n), 2, S) for n in range(100, 200)) == 21


def test_limiter_remembers_a_bounded_number_for_a_bounded_time() -> None:
    limiter = RequestLimiter(per_second=1, per_image=1)
    for number in range(1, 100_000):
        admits(limiter, attach_request(number), number, S, is_pressed=True)
    assert limiter.remembered == 32_768
    limiter.forget_old(10 * S, max_age_ns=3 * S)
    assert limiter.remembered == 0


# --- the state machine


def test_flood_of_attaches_is_postponed_and_a_client_gets_in() -> None:
    harness = StateHarness(nslots=8, pools=(4096,), max_requests_per_second=100, max_requests_per_image=100)
    for number in range(1, 5000):
        harness.send(attach_request(number))
    harness.work()
    assert len(harness.state.leases) <= 201
    assert harness.state.counters.postponed.value >= 4700
    client = attach_request(900_000)
    harness.send(client)
    assert harness.state.leases.of_client(900_000) is None
    harness.tick(0.1)
    harness.send(client)
    harness.work()
    assert harness.response(900_000).code is ResponseCode.OK


def test_only_what_a_client_waits_for_is_awaited() -> None:
    """The answers to a flood, and the ends of what it got, are not: they go behind all others."""
    harness = StateHarness(nslots=8, pools=(4096,), max_leases=160)

    def awaited(actions: list[Action]) -> list[tuple[int | None, bool]]:
        harness.perform(actions)
        return [
            (getattr(action.message, "client_id", None) or getattr(action.message, "correlation_id", None),
             action.is_awaited)
            for action in actions
            if isinstance(action, Send)
        ]  # fmt: skip

    def send(number: int) -> list[tuple[int | None, bool]]:
        return awaited(harness.state.on_message(attach_request(number), harness.now))

    send(1)
    harness.work()
    # Until there are many leases without a keepalive, each request is answered at once.
    assert [send(number) for number in range(2, 13)] == [[(number, False)] for number in range(2, 12)] + [[]]
    harness.tick(0.1)
    assert send(12) == [(12, True)], "a repetition that is handled"
    assert send(5) == [(5, True)], "a repetition that was answered before"
    lease = harness.state.leases.of_client(12)
    assert lease is not None
    harness.now += 2 * S
    keepalive = ShmLeaseKeepalive(
        lease_id=lease.lease_id, stream_id=20_000, client_id=12, role=Role.CONSUMER, client_timestamp_ns=1
    )
    harness.send(keepalive)
    harness.now += 1 * S
    ended = awaited(harness.state.on_tick(harness.now, read_until_ns=harness.now))
    assert sorted(ended) == [(number, number == 5) for number in range(1, 12)]
    harness.now += 3 * S
    assert awaited(harness.state.on_tick(harness.now, read_until_ns=harness.now)) == [(12, True)]


def test_attach_that_needs_files_is_postponed_while_unused_files_take_half_the_quota() -> None:
    layout = StreamLayout(8, (4096,))
    harness = StateHarness(nslots=8, pools=(4096,), quota_bytes=10 * layout.nbytes)
    for number in range(1, 100):
        harness.send(attach_request(number, stream_id=20_000 + number))
    harness.work()
    assert harness.state.records.total_bytes == 6 * layout.nbytes
    # A lease on existing files costs nothing, and is granted at once.
    harness.send(attach_request(800_000, stream_id=20_001))
    assert harness.response(800_000).code is ResponseCode.OK
    client = attach_request(900_000, stream_id=29_000)
    harness.send(client)
    harness.tick(0.1)
    harness.send(client)
    harness.work()
    assert harness.response(900_000).code is ResponseCode.OK


def test_refusal_names_the_limit_of_leases() -> None:
    harness = StateHarness(nslots=8, pools=(4096,), max_leases=2)
    assert harness.attach(20_000, 1).code is ResponseCode.OK
    assert harness.attach(20_000, 2).code is ResponseCode.OK
    code, reason = harness.refusal(harness.request_attach(20_000, 3))
    assert code is ResponseCode.REJECTED
    assert "2 leases" in reason
    assert "driver.max_leases" in reason


def test_reserved_lease_lapses_unless_its_request_is_repeated() -> None:
    harness = StateHarness(nslots=8, pools=(4096,))
    lapsing, kept = attach_request(1), attach_request(2, stream_id=20_001)
    harness.send(lapsing)
    harness.send(kept)
    for _ in range(12):
        harness.tick(1.0)
        harness.send(kept)
    assert harness.state.leases.of_client(1) is None
    assert harness.state.leases.of_client(2) is not None
    assert harness.state.counters.snapshot()["lapsed"] == 1
    harness.work()
    assert harness.response(2).code is ResponseCode.OK


def test_files_of_unused_streams_make_room_for_a_new_stream() -> None:
    layout = StreamLayout(8, (4096,))
    harness = StateHarness(nslots=8, pools=(4096,), quota_bytes=2 * layout.nbytes, release_idle_ns=3600 * S)
    for stream_id in (20_000, 20_001):
        assert harness.attach(stream_id, stream_id).code is ResponseCode.OK
    code, reason = harness.refusal(harness.request_attach(20_002, 7))
    assert (code, "driver.quota_percent" in reason) == (ResponseCode.REJECTED, True)
    harness.tick(4.0)  # both leases expire; their files stay
    assert (len(harness.state.leases), harness.state.records.with_files) == (0, 2)
    assert harness.attach(20_002, 8).code is ResponseCode.OK
    assert harness.state.records.total_bytes == 2 * layout.nbytes


def test_repeated_request_gets_its_lease_again_after_its_response_left_the_cache() -> None:
    harness = StateHarness(nslots=8, pools=(4096,))
    client = attach_request(900_000)
    harness.send(client)
    harness.work()
    first = harness.response(900_000)
    # Refused ones fill the cache, too.
    for number in range(1, 5000):
        harness.send(attach_request(number, stream_id=3))
    harness.sent.clear()
    harness.tick(1.0)
    harness.send(client)
    assert harness.response(900_000).lease_id == first.lease_id
    assert len(harness.state.leases) == 1


def test_many_keepalives_without_a_lease_get_few_answers() -> None:
    harness = StateHarness(nslots=8, pools=(4096,))
    granted = harness.attach(20_000, 1)
    for number in range(5000):
        harness.keep_alive(granted, 1, Role.CONSUMER, lease_id=10_000 + number)
    assert len(harness.notices()) <= 1001
    assert harness.state.counters.unanswered.value >= 3990


def test_repeated_request_gets_a_new_lease_after_an_unused_one_expired() -> None:
    """A client that did not get the response asks still. The old response names an ended lease."""
    harness = StateHarness(nslots=8, pools=(4096,))
    client = attach_request(900_000)
    harness.send(client)
    harness.work()
    first = harness.response(900_000)
    harness.tick(4.0)
    assert len(harness.state.leases) == 0
    harness.sent.clear()
    harness.send(client)
    harness.work()
    again = harness.response(900_000)
    assert again.code is ResponseCode.OK
    assert again.lease_id != first.lease_id
    held = harness.state.leases.of_client(900_000)
    assert held is not None
    assert held.lease_id == again.lease_id
