"""fork in a standalone program: the child shares no region, lock or handle with its parent."""

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
def forking_process(environment: Environment) -> RemoteProcess:
    """A process with every kind of handle."""
    # Forking with threads, which Python warns about, is the subject of this test.
    remote = RemoteProcess(
        ForkingProcess, environment.options, environment.stream_id, env={"PYTHONWARNINGS": "ignore"}
    )
    environment.stack.enter_context(remote)
    remote.call("pid")
    return remote


def assert_parent_works(forking_process: RemoteProcess) -> dict[str, Any]:
    """Checks that the parent still sends and receives."""
    state: dict[str, Any] = forking_process.call("send_frames")
    assert state["wrong"] == 0, "the child wrote into the parent's memory"
    assert state["balanced"] == [True, True]
    return state


def test_every_handle_raises_in_the_child(forking_process: RemoteProcess) -> None:
    reply = forking_process.call("in_child", check="use_handles")
    assert reply["status"] == 0
    outcomes = reply["value"]
    assert len(outcomes) > 40, "the handles have more public names"
    assert {name: outcome for name, outcome in outcomes.items() if outcome != "ForkedError"} == {}
    assert_parent_works(forking_process)


def test_views_of_the_parents_memory_are_private_zeros_in_the_child(forking_process: RemoteProcess) -> None:
    forking_process.call("hold_view")
    reply = forking_process.call("in_child", check="read_views")
    assert reply == {"value": [0, 0, ELEMENTS], "status": 0}
    assert_parent_works(forking_process)


def test_child_can_open_a_new_context(forking_process: RemoteProcess) -> None:
    reply = forking_process.call("in_child", check="open_context")
    assert reply == {"value": {"embeds": False, "sum": 9 * ELEMENTS}, "status": 0}
    assert_parent_works(forking_process)


@pytest.mark.parametrize("way", ["sys.exit", "inside the blocks", "after deleting all"])
def test_child_that_exits_prints_nothing_and_affects_no_other(
    environment: Environment, forking_process: RemoteProcess, way: str
) -> None:
    before = environment.epochs()
    assert len(before) == 1
    assert forking_process.call("exit_child", way=way) == {"status": 3, "stderr": ""}
    assert environment.epochs() == before
    assert environment.aeron_dir.exists()
    assert_parent_works(forking_process)


def test_multiprocessing_with_fork_ends_cleanly(forking_process: RemoteProcess) -> None:
    assert forking_process.call("multiprocess") == 0
    assert_parent_works(forking_process)


def test_child_keeps_no_lock_of_a_closed_parent(
    environment: Environment, forking_process: RemoteProcess
) -> None:
    forking_process.call("keep_child")
    forking_process.call("close_all")
    with tp.open(**environment.options) as context:
        assert context.embeds_media_driver
        context.producer(environment.stream_id, pools=["4KiB"]).close()
    forking_process.call("end_child")


@pytest.mark.leaves_files("the killed parent cannot remove its regions")
def test_child_keeps_no_lock_of_a_killed_parent(
    environment: Environment, forking_process: RemoteProcess
) -> None:
    child = forking_process.call("keep_child")
    forking_process.kill()
    try:
        with tp.open(**environment.options, connect_timeout=30) as context:
            assert context.embeds_media_driver
            context.producer(environment.stream_id, pools=["4KiB"]).close()
    finally:
        # The test run adopts orphans, so the child is now its own.
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_many_forks_at_full_speed_lose_no_frames(
    environment: Environment, forking_process: RemoteProcess, frames_flow: Any
) -> None:
    consumer = environment.consumer()
    for _ in range(50):
        assert forking_process.call("in_child", check="pid")["status"] == 0
        assert_parent_works(forking_process)
    frames_flow(consumer)
