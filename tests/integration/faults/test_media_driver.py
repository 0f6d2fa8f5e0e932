"""The media driver missing, killed, restarted, shared or taken over, with nobody restarting a process."""

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
# The media drivers that we start forget a client that gave no sign of life for this long.
CLIENT_LIVENESS_S = 5.0


def kinds(remote: RemoteProcess) -> list[str]:
    return [event["kind"] for event in remote.call("events") if event["kind"].startswith("media_driver")]


def assert_lost_and_found_again(remote: RemoteProcess) -> None:
    """Once at least: on a busy machine a new media driver may be silent for as long as a dead one."""
    told = kinds(remote)
    assert len(told) > 2
    assert told == ["media_driver_connected"] + ["media_driver_lost", "media_driver_connected"] * (
        len(told) // 2
    )


# --- an external driver


@pytest.mark.parametrize("end", ["killed", "closed"])
def test_a_restarted_driver_is_found_again_by_running_processes(
    place: Environment, frames_flow: Any, wait_until: WaitUntil, end: str
) -> None:
    driver = place.driver()
    consumer = place.consumer(media_driver="external")
    producer = place.worker(media_driver="external")
    producer.call("produce", stream_id=place.stream_id)
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
    place.driver()
    wait_until(lambda: producer.call("offering")["last"] == "published")
    before = consumer.call("receiving")["received"][str(epoch)][2]
    wait_until(lambda: consumer.call("receiving")["received"][str(epoch)][2] > before + 100)
    print(f"\n{end}: back {time.monotonic() - began:.1f} s after the new media driver was started")

    for remote in (producer, consumer):
        assert_lost_and_found_again(remote)
    producer.call("stop_offering")
    written = producer.call("producer_ledger")
    assert written["balanced"]
    assert written["unpublished"]["closed"] + written["unpublished"]["not_connected"] > 0
    assert written["published"] > lost["published"]
    wait_until(lambda: consumer.call("consumer_ledger")["last_seq"] == written["next_seq"] - 1)
    received = consumer.call("stop_receiving")
    ledger = consumer.call("consumer_ledger")
    # The same epoch throughout: one span, with the outage in it.
    assert list(received["received"]) == [str(epoch)]
    first, last, _ = received["received"][str(epoch)]
    assert ledger["balanced"], ledger
    assert ledger["span"] == last - first + 1
    assert ledger["dropped"]["gap"] + ledger["dropped"]["resync"] > 0
    assert received["wrong"] == 0


def test_without_a_driver_an_external_open_says_so_in_time(place: Environment) -> None:
    began = time.monotonic()
    with pytest.raises(tp.MediaDriverUnavailable, match="no media driver is running in") as caught:
        tp.open(**place.options, media_driver="external", connect_timeout=0.5)
    assert time.monotonic() - began < 30
    assert str(place.aeron_dir) in str(caught.value)
    assert "start one" in str(caught.value)
    assert caught.value.aeron_dir == str(place.aeron_dir)


@pytest.mark.leaves_files("the killed driver cannot remove its directory")
def test_a_dead_drivers_directory_is_no_driver(place: Environment, wait_until: WaitUntil) -> None:
    place.driver().kill()

    def is_refused() -> bool:
        # Right after the death its last heartbeat still looks alive.
        try:
            tp.open(**place.options, media_driver="external", connect_timeout=0.5).close()
        except tp.MediaDriverUnavailable:
            return True
        return False

    wait_until(is_refused, timeout=30)


def test_a_producer_asked_for_while_the_driver_is_away_comes_when_it_is_back(
    place: Environment, wait_until: WaitUntil
) -> None:
    driver = place.driver()
    worker = place.worker(media_driver="external")
    driver.kill()
    wait_until(lambda: not worker.call("is_connected"))
    worker.send("produce", stream_id=place.stream_id)
    place.driver()
    assert worker.receive() > 0
    worker.call("close")


# --- an embedded driver


def test_the_second_process_attaches_to_the_first_ones_driver(place: Environment, frames_flow: Any) -> None:
    first, second = place.process(), place.process()
    assert first.call("open", **place.options)
    assert not second.call("open", **place.options)
    first.call("produce", stream_id=place.stream_id)
    first.call("offer_always", per_second=1000)
    second.call("consume", stream_id=place.stream_id)
    second.call("receive_always")
    frames_flow(second)


@pytest.mark.parametrize("end", ["killed", "closed"])
@pytest.mark.leaves_files("a killed process removes nothing")
def test_when_the_embedding_process_ends_another_embeds_and_all_go_on(
    place: Environment, frames_flow: Any, wait_until: WaitUntil, end: str
) -> None:
    embedder = place.process()
    assert embedder.call("open", **place.options)
    producer = place.worker()
    producer.call("produce", stream_id=place.stream_id)
    producer.call("offer_always", per_second=1000)
    consumer = place.consumer()
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


def test_processes_that_open_at_the_same_time_share_one_driver(place: Environment) -> None:
    remotes = [place.process() for _ in range(4)]
    for remote in remotes:
        remote.send("open", **place.options)
    assert sum(remote.receive() for remote in remotes) == 1


def test_threads_that_open_at_the_same_time_share_one_driver(place: Environment) -> None:
    with ThreadPoolExecutor(4) as threads, ExitStack() as stack:
        contexts = list(threads.map(lambda _: tp.open(**place.options), range(4)))
        for context in contexts:
            stack.callback(context.close)
        assert sum(context.embeds_media_driver for context in contexts) == 1


def test_a_second_driver_in_the_same_place_names_the_holder(place: Environment) -> None:
    holder = place.driver()
    with pytest.raises(tp.MediaDriverBusy, match=f"process {holder.pid}") as caught:
        tp.MediaDriver(str(place.aeron_dir))
    assert caught.value.aeron_dir == str(place.aeron_dir)
    with tp.MediaDriver(str(place.aeron_dir) + "-other"), pytest.raises(tp.MediaDriverBusy):
        tp.MediaDriver(str(place.aeron_dir) + "-other")


@pytest.mark.parametrize("how", ["MediaDriver", "open"])
def test_what_a_killed_driver_left_is_taken_over_at_once(
    place: Environment, how: str, wait_until: WaitUntil
) -> None:
    killed = place.driver()
    killed.kill()
    assert place.aeron_dir.exists()
    began = time.monotonic()
    if how == "open":
        # Long enough not to be believed by the age of the heartbeat alone.
        with tp.open(**place.options, driver_timeout=60, connect_timeout=30) as context:
            assert context.embeds_media_driver
            context.producer(place.stream_id, pools=["4KiB"]).close()
    else:
        with tp.MediaDriver(str(place.aeron_dir), driver_timeout=60):
            pass
    print(f"\ntaken over by {how} in {time.monotonic() - began:.2f} s")
    assert not place.aeron_dir.exists()


def test_a_directory_removed_under_everybody_is_made_anew(
    place: Environment, frames_flow: Any, wait_until: WaitUntil
) -> None:
    """Someone tidies up /dev/shm: the running driver goes on in memory, newcomers find nothing."""
    first = place.worker()
    first.call("produce", stream_id=place.stream_id)
    first.call("offer_always", per_second=1000)
    shutil.rmtree(place.aeron_dir)
    second = place.process()
    with pytest.raises(RemoteError, match="MediaDriverUnavailable") as caught:
        second.call("open", **place.options, connect_timeout=1.0)
    assert f"process {first.pid}" in str(caught.value)
    first.call("close")
    assert second.call("open", **place.options)
    second.call("close")


# --- a client that stops for a while


@pytest.mark.parametrize("who", ["producer", "consumer"])
def test_a_client_stopped_longer_than_its_liveness_recovers(
    place: Environment, frames_flow: Any, wait_until: WaitUntil, who: str
) -> None:
    place.driver()
    consumer = place.consumer()
    producer = place.producer()
    producer.call("offer_always", per_second=1000)
    epoch = frames_flow(consumer)
    stopped = {"producer": producer, "consumer": consumer}[who]
    stopped.stop()
    # No state to look at tells that the liveness has run out: the clock does.
    time.sleep(CLIENT_LIVENESS_S + 2)
    stopped.resume()
    wait_until(lambda: len(kinds(stopped)) > 2 and stopped.call("is_connected"), timeout=60)
    assert_lost_and_found_again(stopped)
    wait_until(lambda: producer.call("offering")["last"] == "published")
    before = consumer.call("receiving")["received"][str(epoch)][2]
    wait_until(lambda: consumer.call("receiving")["received"][str(epoch)][2] > before + 100)
    producer.call("stop_offering")
    assert producer.call("producer_ledger")["balanced"]
    assert consumer.call("stop_receiving")["wrong"] == 0
    assert consumer.call("consumer_ledger")["balanced"]


def test_the_embedding_process_stopped_for_long_comes_back_too(
    place: Environment, frames_flow: Any, wait_until: WaitUntil
) -> None:
    embedder = place.producer()
    assert embedder.call("is_embedding")
    embedder.call("offer_always", per_second=1000)
    consumer = place.consumer()
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
