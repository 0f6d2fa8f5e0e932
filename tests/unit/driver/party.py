"""A whole driver on a real media driver, and a client that speaks raw messages to it."""

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
    """A connection without a driver of its own."""
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
    on: _native.Conductor,
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
        on,
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


class Client:
    """Speaks schema 901 and nothing else. `turn` is called while it waits: it may run the driver."""

    def __init__(self, aeron_dir: Path | str, base: Path, turn: Callable[[], object]) -> None:
        self._context = connect(aeron_dir, base)
        self.conductor = self._context.connection.conductor
        self._out = _native.Publication(self.conductor, "aeron:ipc", IDS.control)
        self._in = _native.Subscription(self.conductor, "aeron:ipc?tether=false", IDS.control)
        self._announces = _native.Subscription(self.conductor, "aeron:ipc?tether=false", IDS.announce)
        self._turn = turn
        self._numbers = itertools.count(1)
        self.heard: list[Message] = []
        self.announces: list[ShmPoolAnnounce] = []
        self.until(lambda: self._out.is_connected and self._in.is_connected and self._announces.is_ready)

    def close(self) -> None:
        self._context.close()

    def until(self, predicate: Callable[[], Any]) -> Any:
        """Listens until the predicate holds; gives its value."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self._turn()
            self.listen()
            if found := predicate():
                return found
            assert time.monotonic() < deadline, f"nothing of it came: {self.heard[-5:]}"
            time.sleep(0.0005)

    def listen(self) -> None:
        for message in self._in.poll():
            try:
                self.heard.append(sbe.decode(message))
            except CodecError:
                continue
        for message in self._announces.poll():
            announce = sbe.decode(message)
            # Names of streams travel beside their announces.
            if isinstance(announce, ShmPoolAnnounce):
                self.announces.append(announce)

    def say(self, message: Message | bytes) -> None:
        data = message if isinstance(message, bytes) else message.encode()
        self.until(lambda: self._out.offer(data) == "sent")

    def next(self, kind: type[_M], **fields: Any) -> _M:
        """The first message of that kind with those fields."""

        def find() -> _M | None:
            for one in self.heard:
                if isinstance(one, kind) and all(getattr(one, name) == fields[name] for name in fields):
                    return one
            return None

        found: _M = self.until(find)
        return found

    def announce(self, stream_id: int, after: int = 0, **fields: Any) -> ShmPoolAnnounce:
        """The first announce of the stream with a larger epoch than `after`."""

        def find() -> ShmPoolAnnounce | None:
            for one in self.announces:
                fits = all(getattr(one, name) == fields[name] for name in fields)
                if fits and one.stream_id == stream_id and one.epoch > after:
                    return one
            return None

        found: ShmPoolAnnounce = self.until(find)
        return found

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
        self.say(request)
        return self.next(ShmAttachResponse, correlation_id=correlation)

    def detach(self, granted: ShmAttachResponse, client_id: int, role: Role) -> int:
        correlation = client_id << 32 | next(self._numbers)
        assert granted.lease_id is not None
        assert granted.stream_id is not None
        self.say(
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
        self.say(
            ShmLeaseKeepalive(
                lease_id=granted.lease_id,
                stream_id=granted.stream_id,
                client_id=client_id,
                role=role,
                client_timestamp_ns=time.monotonic_ns(),
            )
        )

    def service(self, token: str | None = "token") -> ServiceClient:
        """Only while the driver runs on a thread of its own."""
        return ServiceClient(self.conductor, "driver", token=token)


class Stage:
    """A driver that the test turns by hand, on a clock of its own."""

    def __init__(self, driver: DriverAgent, clock: ManualClock) -> None:
        self.driver = driver
        self.clock = clock
        self.runner = Runner(driver, clock=clock)
        self.runner.open()
        # What was said before it listened is lost.
        assert leaks.wait_for(self._is_ready, timeout=DEADLINE_S)

    def _is_ready(self) -> bool:
        self.turn()
        return self.driver.is_ready()

    def turn(self) -> None:
        if not self.runner.stopped:
            self.runner.step()
        assert self.runner.counters.errors.value == 0
