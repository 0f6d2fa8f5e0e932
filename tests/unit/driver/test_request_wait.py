"""The wait of a driver's agent: it ends when there is something to do, and leaves that where it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tensorpool import _native
from tensorpool.driver.agent import AnnouncerOptions
from tensorpool.service.events import Event

STREAM_ID, COMMAND_ID = 4_711, 4_712
Parts = tuple[_native.RequestWait, _native.Subscription, _native.Mailbox]


@pytest.fixture
def parts(conductor: _native.Conductor, shm_base: Path) -> Iterator[Parts]:
    with ExitStack() as stack:
        requests = _native.Subscription(conductor, "aeron:ipc", STREAM_ID)
        commands = _native.Mailbox(conductor, "aeron:ipc", COMMAND_ID, ["driver"])
        options = AnnouncerOptions(period_ns=1_000_000_000, stall_ns=60_000_000_000, base_dirs=[shm_base])
        announcer = _native.StreamAnnouncer(conductor, options)
        for part in (requests, commands, announcer):
            stack.callback(part.close)
        yield _native.RequestWait(requests, commands, announcer), requests, commands


def publication(
    conductor: _native.Conductor, stream_id: int, wait_until: Callable[..., Any]
) -> _native.Publication:
    opened = _native.Publication(conductor, "aeron:ipc", stream_id)
    wait_until(lambda: opened.is_connected)
    return opened


def test_request_ends_the_wait_and_stays(
    conductor: _native.Conductor, parts: Parts, wait_until: Callable[..., Any]
) -> None:
    wait, requests, _ = parts
    sender = publication(conductor, STREAM_ID, wait_until)
    assert not wait.wait(0.05)
    assert sender.offer(b"a request") == "sent"
    wait_until(lambda: wait.wait(1.0))
    assert requests.poll() == [b"a request"]
    assert not wait.wait(0.05)
    sender.close()


def test_command_ends_the_wait_and_stays(
    conductor: _native.Conductor, parts: Parts, wait_until: Callable[..., Any]
) -> None:
    wait, _, commands = parts
    sender = publication(conductor, COMMAND_ID, wait_until)
    assert sender.offer(Event("driver", "status", 1).encode()) == "sent"
    wait_until(lambda: wait.wait(1.0))
    assert len(commands.take()) == 1
    assert not wait.wait(0.05)
    sender.close()


def test_interrupt_ends_the_present_wait_and_later_ones(parts: Parts) -> None:
    wait, _, _ = parts
    ended = threading.Event()

    def wait_on() -> None:
        while not wait.wait(1.0):
            pass
        ended.set()

    thread = threading.Thread(target=wait_on)
    thread.start()
    wait.interrupt()
    thread.join(60)
    assert ended.is_set()
    assert wait.wait(1.0)
