"""A media driver that is missing, killed, restarted, shared or taken over, without a restart of clients."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

import tensorpool as tp
from tests.remote_process import RemoteError, RemoteProcess

from .conftest import Environment

WaitUntil = Callable[..., Any]
# Our media drivers drop a client without activity for this long.
CLIENT_LIVENESS_S = 5.0


def kinds(remote: RemoteProcess) -> list[str]:
    """Kinds of the media driver events of a process."""
    return [event["kind"] for event in remote.call("events") if event["kind"].startswith("media_driver")]


def assert_reconnected(remote: RemoteProcess) -> None:
    """Checks for at least one reconnection; a busy machine may delay a new media driver beyond its
    timeout."""
    events = kinds(remote)
    assert len(events) > 2
    assert events == ["media_driver_connected"] + ["media_driver_lost", "media_driver_connected"] * (
        len(events) // 2
    )


# --- a driver that was killed while it started


@pytest.mark.parametrize("size", [0, 100, 8 << 20])
def test_unfinished_mark_file_does_not_delay_the_next_media_driver(
    environment: Environment, size: int
) -> None:
    """Aeron waits for such a file for as long as for a driver that does not answer, 5 s, again and again."""
    environment.aeron_dir.mkdir()
    with (environment.aeron_dir / "cnc.dat").open("wb") as mark:
        mark.truncate(size)
    # Shorter than one of Aeron's waits, longer than a start may take.
    with tp.open(**environment.options, connect_timeout=4.5) as ctx:
        assert ctx.embeds_media_driver


# --- an external driver


@pytest.mark.parametrize("end", ["killed", "closed"])
def test_processes_reconnect_to_a_restarted_media_driver(
    environment: Environment, frames_flow: Any, wait_until: WaitUntil, end: str
) -> None:
    driver = environment.driver()
    consumer = environment.consumer(media_driver="external")
    producer = environment.worker(media_driver="external")
    producer.call("produce", stream_id=environment.stream_id)
    producer.call("offer_always", per_second=1000)
    epoch = frames_flow(consumer)

    if end == "killed":
        driver.kill()
    else:
        driver.end()
    for remote in (producer, consumer):
        wait_until(lambda remote=remote: not remote.call("is_connected"))
    wait_until(lambda: producer.call("offering")["last"] in ("closed", "not_connected"))
    lost = producer.call("producer_ledger")
    began = time.monotonic()
    environment.driver()
    wait_until(lambda: producer.call("offering")["last"] == "published")
    before = consumer.call("receiving")["received"][str(epoch)][2]
    wait_until(lambda: consumer.call("receiving")["received"][str(epoch)][2] > before + 100)
    print(f"\n{end}: back {time.monotonic() - began:.1f} s after the new media driver was started")

    for remote in (producer, consumer):
        assert_reconnected(remote)
    producer.call("stop_offering")
    written = producer.call("producer_ledger")
    assert written["balanced"]
    assert written["unpublished"]["closed"] + written["unpublished"]["not_connected"] > 0
    assert written["published"] > lost["published"]
    wait_until(lambda: consumer.call("consumer_ledger")["last_seq"] == written["next_seq"] - 1)
    received = consumer.call("stop_receiving")
    ledger = consumer.call("consumer_ledger")
    # The epoch stays the same: one span that includes the outage.
    assert list(received["received"]) == [str(epoch)]
    first, last, _ = received["received"][str(epoch)]
    assert ledger["balanced"], ledger
    # The ledger begins when the consumer is mapped, which may be before its first frame.
    assert ledger["span"] >= last - first + 1
    assert ledger["dropped"]["gap"] + ledger["dropped"]["resync"] > 0
    assert received["wrong"] == 0


def test_external_open_without_a_media_driver_fails_in_time(environment: Environment) -> None:
    began = time.monotonic()
    with pytest.raises(tp.MediaDriverUnavailable, match="no media driver is running in") as caught:
        tp.open(**environment.options, media_driver="external", connect_timeout=0.5)
    assert time.monotonic() - began < 30
    assert str(environment.aeron_dir) in str(caught.value)
    assert "start one" in str(caught.value)
    assert caught.value.aeron_dir == str(environment.aeron_dir)


@pytest.mark.leaves_files("the killed driver cannot remove its directory")
def test_directory_of_a_killed_media_driver_is_not_used(
    environment: Environment, wait_until: WaitUntil
) -> None:
    environment.driver().kill()

    def is_refused() -> bool:
        # Right after the kill its heartbeat is still fresh.
        try:
            tp.open(**environment.options, media_driver="external", connect_timeout=0.5).close()
        except tp.MediaDriverUnavailable:
            return True
        return False

    wait_until(is_refused, timeout=30)


def test_producer_is_created_when_the_media_driver_returns(
    environment: Environment, wait_until: WaitUntil
) -> None:
    driver = environment.driver()
    worker = environment.worker(media_driver="external")
    driver.kill()
    wait_until(lambda: not worker.call("is_connected"))
    worker.send("produce", stream_id=environment.stream_id)
    environment.driver()
    assert worker.receive() > 0
    worker.call("close")


# --- an embedded driver


def test_second_process_uses_the_embedded_media_driver_of_the_first(
    environment: Environment, frames_flow: Any
) -> None:
    first, second = environment.process(), environment.process()
    assert first.call("open", **environment.options)
    assert not second.call("open", **environment.options)
    first.call("produce", stream_id=environment.stream_id)
    first.call("offer_always", per_second=1000)
    second.call("consume", stream_id=environment.stream_id)
    second.call("receive_always")
    frames_flow(second)


@pytest.mark.parametrize("end", ["killed", "closed"])
@pytest.mark.leaves_files("a killed process removes nothing")
def test_another_process_embeds_after_the_embedder_ends(
    environment: Environment, frames_flow: Any, wait_until: WaitUntil, end: str
) -> None:
    embedder = environment.process()
    assert embedder.call("open", **environment.options)
    producer = environment.worker()
    producer.call("produce", stream_id=environment.stream_id)
    producer.call("offer_always", per_second=1000)
    consumer = environment.consumer()
    epoch = frames_flow(consumer)
    began = time.monotonic()
    if end == "killed":
        embedder.kill()
    else:
        embedder.end()
    wait_until(lambda: len(kinds(producer)) > 2 and len(kinds(consumer)) > 2, timeout=60)
    wait_until(lambda: producer.call("offering")["last"] == "published")
    before = consumer.call("receiving")["received"][str(epoch)][2]
    wait_until(lambda: consumer.call("receiving")["received"][str(epoch)][2] > before + 100)
    print(f"\nembedding process {end}: frames flow again after {time.monotonic() - began:.1f} s")
    assert producer.call("is_embedding") + consumer.call("is_embedding") == 1
    producer.call("stop_offering")
    assert producer.call("producer_ledger")["balanced"]
    assert consumer.call("stop_receiving")["wrong"] == 0
    assert consumer.call("consumer_ledger")["balanced"]


def test_concurrent_processes_share_one_media_driver(environment: Environment) -> None:
    remotes = [environment.process() for _ in range(4)]
    for remote in remotes:
        remote.send("open", **environment.options)
    assert sum(remote.receive() for remote in remotes) == 1


def test_concurrent_threads_share_one_media_driver(environment: Environment) -> None:
    with ThreadPoolExecutor(4) as threads, ExitStack() as stack:
        contexts = list(threads.map(lambda _: tp.open(**environment.options), range(4)))
        for context in contexts:
            stack.callback(context.close)
        assert sum(context.embeds_media_driver for context in contexts) == 1


def test_second_media_driver_in_a_directory_names_the_holder(environment: Environment) -> None:
    holder = environment.driver()
    with pytest.raises(tp.MediaDriverBusy, match=f"process {holder.pid}") as caught:
        tp.MediaDriver(str(environment.aeron_dir))
    assert caught.value.aeron_dir == str(environment.aeron_dir)
    with tp.MediaDriver(str(environment.aeron_dir) + "-other"), pytest.raises(tp.MediaDriverBusy):
        tp.MediaDriver(str(environment.aeron_dir) + "-other")


@pytest.mark.parametrize("how", ["MediaDriver", "open"])
def test_directory_of_a_killed_media_driver_is_taken_over_at_once(
    environment: Environment, how: str, wait_until: WaitUntil
) -> None:
    killed = environment.driver()
    killed.kill()
    assert environment.aeron_dir.exists()
    began = time.monotonic()
    if how == "open":
        # So long that the age of the heartbeat alone would not allow it.
        with tp.open(**environment.options, driver_timeout=60, connect_timeout=30) as context:
            assert context.embeds_media_driver
            context.producer(environment.stream_id, pools=["4KiB"]).close()
    else:
        with tp.MediaDriver(str(environment.aeron_dir), driver_timeout=60):
            pass
    print(f"\ntaken over by {how} in {time.monotonic() - began:.2f} s")
    assert not environment.aeron_dir.exists()


def test_removed_media_driver_directory_is_created_again(
    environment: Environment, frames_flow: Any, wait_until: WaitUntil
) -> None:
    """The running media driver continues without its directory; new clients cannot find it."""
    first = environment.worker()
    first.call("produce", stream_id=environment.stream_id)
    first.call("offer_always", per_second=1000)
    shutil.rmtree(environment.aeron_dir)
    second = environment.process()
    with pytest.raises(RemoteError, match="MediaDriverUnavailable") as caught:
        second.call("open", **environment.options, connect_timeout=1.0)
    assert f"process {first.pid}" in str(caught.value)
    first.call("close")
    assert second.call("open", **environment.options)
    second.call("close")


# --- a client that stops for a while


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_client_stopped_beyond_its_liveness_timeout_reconnects(
    environment: Environment, frames_flow: Any, wait_until: WaitUntil, role: str
) -> None:
    environment.driver()
    consumer = environment.consumer()
    producer = environment.producer()
    producer.call("offer_always", per_second=1000)
    epoch = frames_flow(consumer)
    stopped = {"producer": producer, "consumer": consumer}[role]
    stopped.stop()
    # No observable state shows that the liveness timeout has passed: only the clock does.
    time.sleep(CLIENT_LIVENESS_S + 2)
    stopped.resume()
    wait_until(lambda: len(kinds(stopped)) > 2 and stopped.call("is_connected"), timeout=60)
    assert_reconnected(stopped)
    wait_until(lambda: producer.call("offering")["last"] == "published")
    before = consumer.call("receiving")["received"][str(epoch)][2]
    wait_until(lambda: consumer.call("receiving")["received"][str(epoch)][2] > before + 100)
    producer.call("stop_offering")
    assert producer.call("producer_ledger")["balanced"]
    assert consumer.call("stop_receiving")["wrong"] == 0
    assert consumer.call("consumer_ledger")["balanced"]


def test_embedder_stopped_for_long_recovers(
    environment: Environment, frames_flow: Any, wait_until: WaitUntil
) -> None:
    embedder = environment.producer()
    assert embedder.call("is_embedding")
    embedder.call("offer_always", per_second=1000)
    consumer = environment.consumer()
    epoch = frames_flow(consumer)
    embedder.stop()
    wait_until(lambda: not consumer.call("is_connected"), timeout=60)
    embedder.resume()
    wait_until(lambda: embedder.call("offering")["last"] == "published")
    before = consumer.call("receiving")["received"][str(epoch)][2]
    wait_until(lambda: consumer.call("receiving")["received"][str(epoch)][2] > before + 100, timeout=60)
    embedder.call("stop_offering")
    assert embedder.call("producer_ledger")["balanced"]
    assert consumer.call("consumer_ledger")["balanced"]
