"""Limits on requests: rates, postponed requests, reserved leases, quota; with floods in the state machine."""

from __future__ import annotations

from tensorpool.driver.plan import StreamLayout
from tensorpool.driver.requests import RateLimit, RequestLimiter
from tensorpool.sbe import ResponseCode, Role, ShmAttachRequest
from tensorpool.sbe.driver import PublishMode

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


# --- rates


def test_rate_limit_allows_a_burst_and_then_its_rate() -> None:
    limit = RateLimit(100, burst=10)
    assert sum(limit.take(S) for _ in range(1000)) == 11
    assert sum(limit.take(S + i * MS) for i in range(1, 1001)) == 100
    assert sum(limit.take(60 * S) for _ in range(1000)) == 11, "at most a burst is kept"


def test_limiter_postpones_what_exceeds_the_rate_until_it_is_repeated() -> None:
    limiter = RequestLimiter(per_second=10, per_image=10)
    flood = [attach_request(number) for number in range(1, 1000)]
    admitted = [limiter.admits(message, 7, S, is_pressed=False) for message in flood]
    assert (sum(admitted), admitted[:21]) == (21, [True] * 21)
    client = attach_request(5000)
    assert not limiter.admits(client, 7, S, is_pressed=False)
    assert not limiter.admits(client, 7, S + 10 * MS, is_pressed=False), "too soon for a client"
    assert limiter.admits(client, 7, S + 100 * MS, is_pressed=False)


def test_limiter_counts_each_image() -> None:
    limiter = RequestLimiter(per_second=1000, per_image=10)
    assert sum(limiter.admits(attach_request(n), 1, S, is_pressed=False) for n in range(1, 100)) == 21
    assert sum(limiter.admits(attach_request(n), 2, S, is_pressed=False) for n in range(100, 200)) == 21


def test_limiter_remembers_a_bounded_number_for_a_bounded_time() -> None:
    limiter = RequestLimiter(per_second=1, per_image=1)
    for number in range(1, 100_000):
        limiter.admits(number.to_bytes(8, "little"), number, S, is_pressed=True)
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
