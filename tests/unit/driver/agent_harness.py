"""A whole driver on a real media driver, and a client that sends raw messages to it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import tensorpool as tp
from tensorpool import _native, sbe
from tensorpool.clock import ManualClock
from tensorpool.driver import DriverAgent, DriverSettings, StreamSettings
from tensorpool.errors import CodecError
from tensorpool.runtime import Runner
from tensorpool.runtime.config import Secret
from tensorpool.sbe import (
    Message,
    PublishMode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmLeaseKeepalive,
    ShmPoolAnnounce,
)
from tensorpool.service import ServiceClient
from tensorpool.transport import StreamIds
from tensorpool.transport.channels import ServiceStreams
from tests import leaks

IDS = StreamIds()
PERIOD_NS = 50_000_000
DEADLINE_S = 60.0
STREAM = 10_000
SMALL = StreamSettings(stream_id=STREAM, nslots=4, pools=(4096,), name="camera-1", tags=("lab",))

_M = TypeVar("_M", bound=Message)


def connect(aeron_dir: Path | str, base: Path) -> tp.Context:
    """A context without a driver."""
    return tp.open(
        "standalone",
        aeron_dir=aeron_dir,
        media_driver="external",
        shm_base_dir=base,
        stream_ids=IDS,
        announce_period=PERIOD_NS / 1e9,
        connect_timeout=30.0,
    )


def agent(
    conductor: _native.Conductor,
    aeron_dir: Path | str,
    base: Path,
    *,
    namespace: str = "default",
    embedded: bool = False,
    token: str | None = "token",
    clock: Any = None,
    **settings: Any,
) -> DriverAgent:
    return DriverAgent(
        conductor,
        settings=DriverSettings(**settings),
        namespace=namespace,
        base_dir=base,
        aeron_dir=str(aeron_dir),
        stream_ids=IDS,
        service_streams=ServiceStreams(),
        service_token=None if token is None else Secret(token),
        announce_period_ns=PERIOD_NS,
        embedded=embedded,
        **({} if clock is None else {"clock": clock}),
    )


class RawClient:
    """A client that uses only messages of schema 901. It calls `step` while it waits, to run the driver."""

    def __init__(self, aeron_dir: Path | str, base: Path, step: Callable[[], object]) -> None:
        self._context = connect(aeron_dir, base)
        self.conductor = self._context.connection.conductor
        self._out = _native.Publication(self.conductor, "aeron:ipc", IDS.control)
        self._in = _native.Subscription(self.conductor, "aeron:ipc?tether=false", IDS.control)
        self._announces = _native.Subscription(self.conductor, "aeron:ipc?tether=false", IDS.announce)
        self._turn = step
        self._numbers = itertools.count(1)
        self.received: list[Message] = []
        self.announces: list[ShmPoolAnnounce] = []
        self.until(lambda: self._out.is_connected and self._in.is_connected and self._announces.is_ready)

    def close(self) -> None:
        self._context.close()

    def until(self, predicate: Callable[[], Any]) -> Any:
        """Polls until the predicate is true. Returns its value."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self._turn()
            self.poll()
            if value := predicate():
                return value
            assert time.monotonic() < deadline, f"last messages: {self.received[-5:]}"
            time.sleep(0.0005)

    def poll(self) -> None:
        for message in self._in.poll():
            try:
                self.received.append(sbe.decode(message))
            except CodecError:
                continue
        for message in self._announces.poll():
            announce = sbe.decode(message)
            # Metadata of plans is on the announce stream too.
            if isinstance(announce, ShmPoolAnnounce):
                self.announces.append(announce)

    def send(self, message: Message | bytes) -> None:
        data = message if isinstance(message, bytes) else message.encode()
        self.until(lambda: self._out.offer(data) == "sent")

    def next(self, kind: type[_M], **fields: Any) -> _M:
        """The first message of that kind with those fields."""

        def find() -> _M | None:
            for message in self.received:
                if isinstance(message, kind) and all(getattr(message, n) == fields[n] for n in fields):
                    return message
            return None

        matching: _M = self.until(find)
        return matching

    def announce(self, stream_id: int, after: int = 0, **fields: Any) -> ShmPoolAnnounce:
        """The first announce of the stream with a larger epoch than `after`."""

        def find() -> ShmPoolAnnounce | None:
            for announce in self.announces:
                matches = all(getattr(announce, name) == fields[name] for name in fields)
                if matches and announce.stream_id == stream_id and announce.epoch > after:
                    return announce
            return None

        matching: ShmPoolAnnounce = self.until(find)
        return matching

    def attach(self, stream_id: int, client_id: int, role: Role, **rest: Any) -> ShmAttachResponse:
        correlation = client_id << 32 | next(self._numbers)
        request = ShmAttachRequest(
            correlation_id=correlation,
            stream_id=stream_id,
            client_id=client_id,
            role=role,
            publish_mode=PublishMode.EXISTING_OR_CREATE,
            **rest,
        )
        self.send(request)
        return self.next(ShmAttachResponse, correlation_id=correlation)

    def detach(self, granted: ShmAttachResponse, client_id: int, role: Role) -> int:
        correlation = client_id << 32 | next(self._numbers)
        assert granted.lease_id is not None
        assert granted.stream_id is not None
        self.send(
            ShmDetachRequest(
                correlation_id=correlation,
                lease_id=granted.lease_id,
                stream_id=granted.stream_id,
                client_id=client_id,
                role=role,
            )
        )
        return correlation

    def keep_alive(self, granted: ShmAttachResponse, client_id: int, role: Role) -> None:
        assert granted.lease_id is not None
        assert granted.stream_id is not None
        self.send(
            ShmLeaseKeepalive(
                lease_id=granted.lease_id,
                stream_id=granted.stream_id,
                client_id=client_id,
                role=role,
                client_timestamp_ns=time.monotonic_ns(),
            )
        )

    def service(self, token: str | None = "token") -> ServiceClient:
        """A client of the driver's service; only for a driver that runs on its own thread."""
        return ServiceClient(self.conductor, "driver", token=token)


class AgentHarness:
    """A driver whose duty cycles the test runs, on a manual clock."""

    def __init__(self, driver: DriverAgent, clock: ManualClock) -> None:
        self.driver = driver
        self.clock = clock
        self.runner = Runner(driver, clock=clock)
        self.runner.open()
        # Messages sent before the driver is ready are skipped.
        assert leaks.wait_for(self._is_ready, timeout=DEADLINE_S)

    def _is_ready(self) -> bool:
        self.step()
        return self.driver.is_ready()

    def step(self) -> None:
        if not self.runner.stopped:
            self.runner.step()
        assert self.runner.counters.errors.value == 0
