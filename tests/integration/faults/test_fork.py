"""A forked child shares nothing of ours with its parent: not the memory, not the locks, not the handles."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

import tensorpool as tp
from tests.remote_process import RemoteProcess

from .conftest import Environment
from .forking_process import ELEMENTS, ForkingProcess

WaitUntil = Callable[..., Any]


@pytest.fixture
def forker(place: Environment) -> RemoteProcess:
    # The deprecation of forking with threads is exactly what is tried here.
    remote = RemoteProcess(ForkingProcess, place.options, place.stream_id, env={"PYTHONWARNINGS": "ignore"})
    place._stack.enter_context(remote)
    remote.call("pid")
    return remote


def assert_parent_goes_on(forker: RemoteProcess) -> dict[str, Any]:
    state: dict[str, Any] = forker.call("goes_on")
    assert state["wrong"] == 0, "the child wrote into the parent's memory"
    assert state["balanced"] == [True, True]
    return state


def test_every_handle_raises_in_the_child(forker: RemoteProcess) -> None:
    answer = forker.call("in_child", check="use_everything")
    assert answer["status"] == 0
    outcomes = answer["value"]
    assert len(outcomes) > 40, "the handles have more to use than that"
    assert {name: found for name, found in outcomes.items() if found != "ForkedError"} == {}
    assert_parent_goes_on(forker)


def test_views_of_the_parents_memory_are_private_zeros_in_the_child(forker: RemoteProcess) -> None:
    forker.call("hold_view")
    answer = forker.call("in_child", check="read_views")
    assert answer == {"value": [0, 0, ELEMENTS], "status": 0}
    assert_parent_goes_on(forker)


def test_the_child_can_open_a_context_of_its_own(forker: RemoteProcess) -> None:
    answer = forker.call("in_child", check="open_anew")
    assert answer == {"value": {"embeds": False, "sum": 9 * ELEMENTS}, "status": 0}
    assert_parent_goes_on(forker)


@pytest.mark.parametrize("way", ["sys.exit", "inside the blocks", "after deleting all"])
def test_a_child_that_ends_normally_says_nothing_and_disturbs_nobody(
    place: Environment, forker: RemoteProcess, way: str
) -> None:
    before = place.epochs()
    assert len(before) == 1
    assert forker.call("exit_child", way=way) == {"status": 3, "said": ""}
    assert place.epochs() == before
    assert place.aeron_dir.exists()
    assert_parent_goes_on(forker)


def test_multiprocessing_with_fork_ends_cleanly(forker: RemoteProcess) -> None:
    assert forker.call("multiprocess") == 0
    assert_parent_goes_on(forker)


def test_a_child_keeps_no_lock_after_the_parent_has_closed(place: Environment, forker: RemoteProcess) -> None:
    forker.call("keep_child")
    forker.call("close_all")
    with tp.open(**place.options) as context:
        assert context.embeds_media_driver
        context.producer(place.stream_id, pools=["4KiB"]).close()
    forker.call("end_child")


@pytest.mark.leaves_files("the killed parent cannot remove its regions")
def test_a_child_keeps_no_lock_after_the_parent_was_killed(place: Environment, forker: RemoteProcess) -> None:
    child = forker.call("keep_child")
    forker.kill()
    try:
        with tp.open(**place.options, connect_timeout=30) as context:
            assert context.embeds_media_driver
            context.producer(place.stream_id, pools=["4KiB"]).close()
    finally:
        # Ours since its parent died: orphans are adopted by the test run.
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_many_forks_at_full_speed_harm_nobody(
    place: Environment, forker: RemoteProcess, frames_flow: Any
) -> None:
    consumer = place.consumer()
    for _ in range(50):
        assert forker.call("in_child", check="pid")["status"] == 0
        assert_parent_goes_on(forker)
    frames_flow(consumer)
