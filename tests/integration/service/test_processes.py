"""Services and clients in several processes, on a real media driver."""

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
from tests.integration.service.roles import Heater, ManyClients, ServiceClientProcess, ServiceProcess
from tests.remote_process import RemoteError, RemoteProcess


@pytest.fixture
def driver(aeron_dir: Path) -> Iterator[str]:
    with tp.MediaDriver(str(aeron_dir)):
        yield str(aeron_dir)


def test_two_services_and_three_clients(driver: str) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(RemoteProcess(ServiceProcess, driver, n)) for n in ("1", "2"))
        client_processes = [
            stack.enter_context(RemoteProcess(ServiceClientProcess, driver, "heater", n))
            for n in ("1", "1", "2")
        ]
        for service_process in (first, second):
            service_process.call("pid")
        assert client_processes[0].call("set", name="temperature", value=180.0) == 180.0
        assert client_processes[1].call("get", name="temperature") == 180.0
        assert client_processes[2].call("get", name="temperature") == 20.0
        for client_process in client_processes:
            client_process.send("many", count=50)
        results = [client_process.receive() for client_process in client_processes]
        # Each call of each client ran exactly once.
        assert sorted(results[0] + results[1]) == list(range(1, 101))
        assert results[2] == list(range(1, 51))
        assert first.call("state")["runs"] == 100
        assert second.call("state")["runs"] == 50


@pytest.mark.requirement("service-5-3", "service-4-1")
@pytest.mark.timeout(300)
def test_million_foreign_messages_cost_no_memory_and_no_command(driver: str) -> None:
    with (
        RemoteProcess(ServiceProcess, driver) as service_process,
        RemoteProcess(ServiceClientProcess, driver) as client_process,
        RemoteProcess(ManyClients, driver) as many_clients,
    ):
        pid = service_process.call("pid")
        many_clients.call("flood", count=10_000)
        before = _resident_bytes(pid)
        many_clients.send("flood", count=1_000_000)
        assert client_process.call("many", count=100, reply_timeout=200) == list(range(1, 101))
        many_clients.receive(200)
        deadline = time.monotonic() + 60
        while (state := service_process.call("state"))["foreign"] < 1_010_000 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert state["foreign"] == 1_010_000
        assert state["requests"] == 100
        assert state["overflowed"] == 0
        # A million messages of a hundred bytes would be a hundred million.
        assert _resident_bytes(pid) - before < 20_000_000


@pytest.mark.requirement("service-5-3")
@pytest.mark.timeout(300)
def test_foreign_messages_cost_no_allocation_on_any_thread(driver: str, tmp_path: Path) -> None:
    """Counts all allocations of the process: conductor, Aeron and interpreter."""
    library = tmp_path / "libcounting_malloc.so"
    source = Path(__file__).parents[1] / "faults" / "counting_malloc.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    env = {"LD_PRELOAD": str(library), "COUNTING_MALLOC": str(library)}
    count = 200_000
    with (
        RemoteProcess(ServiceProcess, driver, env=env) as service_process,
        RemoteProcess(ManyClients, driver) as many_clients,
    ):
        service_process.call("pid")
        many_clients.call("flood", count=10_000)
        before = service_process.call("allocations")
        many_clients.call("flood", count=count, reply_timeout=200)
        deadline = time.monotonic() + 60
        while service_process.call("state")["foreign"] < 10_000 + count and time.monotonic() < deadline:
            time.sleep(0.05)
        allocations = service_process.call("allocations") - before
    print(f"\n{allocations:,} allocations of all threads while {count:,} foreign messages went by")
    assert allocations < count / 10


def _resident_bytes(pid: int) -> int:
    """Anonymous memory: the log buffers that are mapped from files do not count."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def test_large_foreign_messages_are_never_assembled(driver: str, wait_until: Callable[..., Any]) -> None:
    with (
        RemoteProcess(ServiceProcess, driver) as service_process,
        RemoteProcess(ServiceClientProcess, driver) as client_process,
        RemoteProcess(ManyClients, driver) as many_clients,
    ):
        service_process.call("pid")
        many_clients.call("flood_large", count=50, size=200_000)
        assert client_process.call("many", count=3) == [1, 2, 3]
        # Messages of different publications have no common order.
        wait_until(lambda: service_process.call("state")["foreign"] >= 50)
        state = service_process.call("state")
        assert (state["foreign"], state["requests"]) == (50, 3)


@pytest.mark.requirement("service-5-2")
def test_garbage_is_counted_and_changes_nothing(driver: str, wait_until: Callable[..., Any]) -> None:
    with (
        RemoteProcess(ServiceProcess, driver) as service_process,
        RemoteProcess(ServiceClientProcess, driver) as client_process,
        RemoteProcess(ManyClients, driver) as many_clients,
    ):
        service_process.call("pid")
        sent = many_clients.call("garbage")
        assert client_process.call("get", name="temperature") == 20.0

        def counted(state: dict[str, int]) -> int:
            return state["malformed"] + state["unreadable"] + state["foreign"]

        wait_until(lambda: counted(service_process.call("state")) >= sent)
        state = service_process.call("state")
        assert counted(state) == sent
        assert state["malformed"] > 0
        assert state["unreadable"] > 0


def test_client_survives_a_service_killed_during_a_command(
    driver: str, wait_until: Callable[..., Any]
) -> None:
    with RemoteProcess(ServiceClientProcess, driver) as client_process:
        with RemoteProcess(ServiceProcess, driver) as service_process:
            service_process.call("pid")
            assert client_process.call("call", name="run") == 1
            client_process.send("call", name="run", seconds=600, timeout=5)
            wait_until(lambda: service_process.call("state")["started"] == 2)
            service_process.kill()
            with pytest.raises(RemoteError) as error:
                client_process.receive()
            # The echo was published before the command ran: the client knows that it was accepted.
            assert error.value.kind == "ServiceTimeout"
            assert "accepted run(), but did not finish it" in error.value.text
            with pytest.raises(RemoteError) as error:
                client_process.call("call", name="run", timeout=1)
            assert error.value.kind == "NoSuchService"
        with RemoteProcess(ServiceProcess, driver) as again:
            again.call("pid")
            assert client_process.call("call", name="run") == 1


def test_slow_service_and_missing_service_raise_different_errors(driver: str) -> None:
    with (
        tp.open(aeron_dir=driver, media_driver="external") as ctx,
        RemoteProcess(ServiceProcess, driver) as service_process,
    ):
        service_process.call("pid")
        client = ctx.service("heater", timeout=20)
        with pytest.raises(tp.ServiceTimeout, match=r"accepted run\(\), but did not finish it within 2\.0 s"):
            client.call("run", seconds=5.0, timeout=2.0)
        with pytest.raises(tp.NoSuchService, match="no service service:fridge replies"):
            ctx.service("fridge").get("temperature", timeout=0.3)


@pytest.mark.requirement("service-6-1", "service-5-1")
def test_status_stream_has_exactly_the_accepted_commands(driver: str) -> None:
    with tp.open(aeron_dir=driver, media_driver="external") as ctx, ctx.serve(Heater()):
        client, events = ctx.service("heater"), ctx.status_events(timeout=60.0)
        first = _ping_until_received(ctx, client, events)
        client.set("temperature", 30.0)
        with pytest.raises(tp.RequestRejected):
            client.set("temperature", 1000.0)
        client.call("run")
        seen = [first]
        while seen[-1].key != "runs":
            seen.append(next(events))
        events.close()
    accepted = [(e.key, e.value) for e in seen if e.key != "ping()" and not e.key.startswith("ping()")]
    assert accepted == [
        ("temperature", 30.0),
        ("temperature.error", "temperature is at most 250.0, not 1000.0"),
        ("run()", "{}"),
        ("run().result", "1"),
        ("runs", 1),
    ]


def _ping_until_received(ctx: tp.Context, client: Any, events: Any) -> Event:
    """Pings until the subscription of `events` yields the first event."""
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


def test_watch_yields_changes_of_one_property(driver: str) -> None:
    with tp.open(aeron_dir=driver, media_driver="external") as ctx:
        running = ctx.serve(Heater())
        client = ctx.service("heater")
        events = client.watch("temperature", timeout=60.0)
        heater = running.service
        assert isinstance(heater, Heater)

        async def both() -> Event:
            mailbox = asyncio.create_task(asyncio.to_thread(next, events))
            while not mailbox.done():
                heater.temperature += 1.0
                await asyncio.sleep(0.02)
            return mailbox.result()

        event = asyncio.run(both())
        assert event.key == "temperature"
        assert isinstance(event.value, float)
        assert event.correlation_id == 0
        events.close()


def test_asyncio_clients_wait_without_blocking_the_loop(driver: str) -> None:
    async def call_all(client: tp.service.ServiceClient) -> tuple[list[Any], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        results = await asyncio.gather(*(client.aio.call("run", seconds=0.1) for _ in range(5)))
        ticking.cancel()
        return results, ticks

    with tp.open(aeron_dir=driver, media_driver="external") as ctx, ctx.serve(Heater()):
        results, ticks = asyncio.run(call_all(ctx.service("heater", timeout=30)))
    assert sorted(results) == [1, 2, 3, 4, 5]
    assert ticks > 10


def test_services_are_listed_and_the_module_opens_a_client(driver: str) -> None:
    with tp.open(aeron_dir=driver, media_driver="external") as ctx, ctx.serve(Heater(instance="7")):
        [service] = ctx.services(2.0)
        assert (service.tag, service.name, service.instance) == ("service:heater:7", "heater", "7")
    from tensorpool.context import startup

    with tp.open(aeron_dir=driver, media_driver="external") as ctx, ctx.serve(Heater()):
        try:
            with tp.service("heater", aeron_dir=driver) as client:  # type: ignore[operator]
                assert client.set("temperature", 42.0) == 42.0
        finally:
            startup.close_shared_context(driver)


def test_malformed_replies_do_not_disturb_a_client(driver: str) -> None:
    with tp.open(aeron_dir=driver, media_driver="external") as ctx, ctx.serve(Heater()):
        streams = ctx.service_streams
        noise = _native.Publication(ctx.connection.conductor, streams.status_channel, streams.status)
        client = ctx.service("heater")
        good = Event("service:heater", "temperature", 99.0, correlation_id=1).encode()
        while not noise.is_connected:
            time.sleep(0.002)
        for length in range(1, len(good)):
            noise.offer(good[:length])
        assert client.get("temperature") == 20.0
