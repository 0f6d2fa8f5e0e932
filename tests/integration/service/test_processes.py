"""Services and clients as processes of their own, on a real media driver."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.service import Event
from tests.integration.service.roles import Crowd, Guest, Kitchen, Oven
from tests.remote_process import RemoteError, RemoteProcess


@pytest.fixture
def driver(aeron_dir: Path) -> Iterator[str]:
    with tp.MediaDriver(str(aeron_dir)):
        yield str(aeron_dir)


def test_two_services_and_three_clients(driver: str) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(RemoteProcess(Kitchen, driver, n)) for n in ("1", "2"))
        guests = [stack.enter_context(RemoteProcess(Guest, driver, "oven", n)) for n in ("1", "1", "2")]
        for kitchen in (first, second):
            kitchen.call("pid")
        assert guests[0].call("set", name="temperature", value=180.0) == 180.0
        assert guests[1].call("get", name="temperature") == 180.0
        assert guests[2].call("get", name="temperature") == 20.0
        for guest in guests:
            guest.send("many", count=50)
        results = [guest.receive() for guest in guests]
        # Each call counted exactly once, whoever asked.
        assert sorted(results[0] + results[1]) == list(range(1, 101))
        assert results[2] == list(range(1, 51))
        assert first.call("state")["baked"] == 100
        assert second.call("state")["baked"] == 50


@pytest.mark.requirement("service-5-3", "service-4-1")
@pytest.mark.timeout(300)
def test_a_million_foreign_messages_cost_no_memory_and_no_command(driver: str) -> None:
    with (
        RemoteProcess(Kitchen, driver) as kitchen,
        RemoteProcess(Guest, driver) as guest,
        RemoteProcess(Crowd, driver) as crowd,
    ):
        pid = kitchen.call("pid")
        crowd.call("flood", count=10_000)
        before = _resident_bytes(pid)
        crowd.send("flood", count=1_000_000)
        assert guest.call("many", count=100, reply_timeout=200) == list(range(1, 101))
        crowd.receive(200)
        deadline = time.monotonic() + 60
        while (state := kitchen.call("state"))["foreign"] < 1_010_000 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert state["foreign"] == 1_010_000
        assert state["requests"] == 100
        assert state["overflowed"] == 0
        # A million messages of a hundred bytes would be a hundred million.
        assert _resident_bytes(pid) - before < 20_000_000


@pytest.mark.requirement("service-5-3")
@pytest.mark.timeout(300)
def test_foreign_messages_cost_no_allocation_on_any_thread(driver: str, tmp_path: Path) -> None:
    """Counted by the allocator itself, through the real poll: the conductor, Aeron, the interpreter."""
    library = tmp_path / "libcounting_malloc.so"
    source = Path(__file__).parents[1] / "faults" / "counting_malloc.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    env = {"LD_PRELOAD": str(library), "COUNTING_MALLOC": str(library)}
    count = 200_000
    with RemoteProcess(Kitchen, driver, env=env) as kitchen, RemoteProcess(Crowd, driver) as crowd:
        kitchen.call("pid")
        crowd.call("flood", count=10_000)
        before = kitchen.call("allocations")
        crowd.call("flood", count=count, reply_timeout=200)
        deadline = time.monotonic() + 60
        while kitchen.call("state")["foreign"] < 10_000 + count and time.monotonic() < deadline:
            time.sleep(0.05)
        allocations = kitchen.call("allocations") - before
    print(f"\n{allocations:,} allocations of all threads while {count:,} foreign messages went by")
    assert allocations < count / 10


def _resident_bytes(pid: int) -> int:
    """Anonymous memory: the log buffers that are mapped from files do not count."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def test_large_messages_for_others_are_never_put_together(
    driver: str, wait_until: Callable[..., Any]
) -> None:
    with (
        RemoteProcess(Kitchen, driver) as kitchen,
        RemoteProcess(Guest, driver) as guest,
        RemoteProcess(Crowd, driver) as crowd,
    ):
        kitchen.call("pid")
        crowd.call("flood_large", count=50, size=200_000)
        assert guest.call("many", count=3) == [1, 2, 3]
        # What others sent may be read after what was sent later.
        wait_until(lambda: kitchen.call("state")["foreign"] >= 50)
        state = kitchen.call("state")
        assert (state["foreign"], state["requests"]) == (50, 3)


@pytest.mark.requirement("service-5-2")
def test_garbage_is_counted_and_changes_nothing(driver: str, wait_until: Callable[..., Any]) -> None:
    with (
        RemoteProcess(Kitchen, driver) as kitchen,
        RemoteProcess(Guest, driver) as guest,
        RemoteProcess(Crowd, driver) as crowd,
    ):
        kitchen.call("pid")
        sent = crowd.call("garbage")
        assert guest.call("get", name="temperature") == 20.0

        def counted(state: dict[str, int]) -> int:
            return state["malformed"] + state["unreadable"] + state["foreign"]

        wait_until(lambda: counted(kitchen.call("state")) >= sent)
        state = kitchen.call("state")
        assert counted(state) == sent
        assert state["malformed"] > 0
        assert state["unreadable"] > 0


def test_a_service_killed_in_the_middle_of_a_command_is_told_apart_and_comes_back(
    driver: str, wait_until: Callable[..., Any]
) -> None:
    with RemoteProcess(Guest, driver) as guest:
        with RemoteProcess(Kitchen, driver) as kitchen:
            kitchen.call("pid")
            assert guest.call("call", name="bake") == 1
            guest.send("call", name="bake", seconds=600, timeout=5)
            wait_until(lambda: kitchen.call("state")["begun"] == 2)
            kitchen.kill()
            with pytest.raises(RemoteError) as error:
                guest.receive()
            # Its echo was on record before it began: the client knows that it was accepted.
            assert error.value.kind == "ServiceTimeout"
            assert "accepted bake() and is not done" in error.value.text
            with pytest.raises(RemoteError) as error:
                guest.call("call", name="bake", timeout=1)
            assert error.value.kind == "NoSuchService"
        with RemoteProcess(Kitchen, driver) as again:
            again.call("pid")
            assert guest.call("call", name="bake") == 1


def test_a_slow_service_is_told_apart_from_none(driver: str) -> None:
    with tp.open(aeron_dir=driver, media_driver="external") as ctx, RemoteProcess(Kitchen, driver) as kitchen:
        kitchen.call("pid")
        client = ctx.service("oven", timeout=20)
        with pytest.raises(tp.ServiceTimeout, match=r"accepted bake\(\) and is not done within 2\.0 s"):
            client.call("bake", seconds=5.0, timeout=2.0)
        with pytest.raises(tp.NoSuchService, match="nobody answers to service:fridge"):
            ctx.service("fridge").get("temperature", timeout=0.3)


@pytest.mark.requirement("service-6-1", "service-5-1")
def test_everything_accepted_is_on_the_status_stream_and_nothing_else(driver: str) -> None:
    with tp.open(aeron_dir=driver, media_driver="external") as ctx, ctx.serve(Oven()):
        client, events = ctx.service("oven"), ctx.status_events(timeout=60.0)
        first = _ask_until_heard(ctx, client, events)
        client.set("temperature", 30.0)
        with pytest.raises(tp.RequestRejected):
            client.set("temperature", 1000.0)
        client.call("bake")
        seen = [first]
        while seen[-1].key != "baked":
            seen.append(next(events))
        events.close()
    said = [(e.key, e.value) for e in seen if e.key != "ping()" and not e.key.startswith("ping()")]
    assert said == [
        ("temperature", 30.0),
        ("temperature.error", "temperature is at most 250.0, not 1000.0"),
        ("bake()", "{}"),
        ("bake().result", "1"),
        ("baked", 1),
    ]


def _ask_until_heard(ctx: tp.Context, client: Any, events: Any) -> Event:
    """The watcher is there once it hears an answer: pings until then."""
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            client.ping()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        return next(events)
    finally:
        stop.set()
        asking.join()


def test_watch_hears_changes_of_one_property(driver: str) -> None:
    with tp.open(aeron_dir=driver, media_driver="external") as ctx:
        running = ctx.serve(Oven())
        client = ctx.service("oven")
        events = client.watch("temperature", timeout=60.0)
        oven = running.service
        assert isinstance(oven, Oven)

        async def both() -> Event:
            heard = asyncio.create_task(asyncio.to_thread(next, events))
            while not heard.done():
                oven.temperature += 1.0
                await asyncio.sleep(0.02)
            return heard.result()

        event = asyncio.run(both())
        assert event.key == "temperature"
        assert isinstance(event.value, float)
        assert event.correlation_id == 0
        events.close()


def test_asyncio_clients_wait_without_blocking_the_loop(driver: str) -> None:
    async def scene(client: tp.service.ServiceClient) -> tuple[list[Any], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        results = await asyncio.gather(*(client.aio.call("bake", seconds=0.1) for _ in range(5)))
        ticking.cancel()
        return results, ticks

    with tp.open(aeron_dir=driver, media_driver="external") as ctx, ctx.serve(Oven()):
        results, ticks = asyncio.run(scene(ctx.service("oven", timeout=30)))
    assert sorted(results) == [1, 2, 3, 4, 5]
    assert ticks > 10


def test_services_are_found_and_the_module_itself_is_a_way_in(driver: str) -> None:
    with tp.open(aeron_dir=driver, media_driver="external") as ctx, ctx.serve(Oven(instance="7")):
        [found] = ctx.services(2.0)
        assert (found["tag"], found["name"], found["instance"]) == ("service:oven:7", "oven", "7")
    from tensorpool.context import startup

    with tp.open(aeron_dir=driver, media_driver="external") as ctx, ctx.serve(Oven()):
        try:
            with tp.service("oven", aeron_dir=driver) as client:  # type: ignore[operator]
                assert client.set("temperature", 42.0) == 42.0
        finally:
            startup._shared_contexts.pop(driver).close()


def test_malformed_answers_do_not_disturb_a_client(driver: str) -> None:
    with tp.open(aeron_dir=driver, media_driver="external") as ctx, ctx.serve(Oven()):
        streams = ctx.service_streams
        noise = _native.Publication(ctx.connection.conductor, streams.channel, streams.status)
        client = ctx.service("oven")
        good = Event("service:oven", "temperature", 99.0, correlation_id=1).encode()
        while not noise.is_connected:
            time.sleep(0.002)
        for length in range(1, len(good)):
            noise.offer(good[:length])
        assert client.get("temperature") == 20.0
