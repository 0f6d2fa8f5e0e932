"""A driver process, client processes, and checks that their leases, epochs and ledgers agree."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import tensorpool as tp
from tests.fork_server import ForkServer
from tests.integration.environment import Environment, newest_epoch
from tests.remote_process import TIMEOUT_S, RemoteError, RemoteProcess

from .client_process import ClientProcess, call_driver

LONG = os.environ.get("TENSORPOOL_TEST_LONG") == "1"
ROUNDS = 50 if LONG else 5
TOKEN = "open sesame"
# Outcomes of an offer that are allowed while other processes fail.
KNOWN_OUTCOMES = {"published", "detached", "not_connected", "closed", "back_pressured"}


@dataclass(frozen=True)
class Periods:
    """Periods of the driver and its clients. Short, so that recovery takes little time."""

    keepalive: float = 0.1
    grace: int = 5
    announce: float = 0.1

    @property
    def lease(self) -> float:
        """Lifetime of a lease without keepalives, in seconds."""
        return self.keepalive * self.grace

    def toml(self, driver: str = "") -> str:
        """Configuration file with these periods; `driver` has more settings of the driver."""
        return f"""
            [service]
            token = "{TOKEN}"
            [aeron]
            announce_period = "{self.announce}s"
            [context]
            keepalive = "{self.keepalive}s"
            attach_retry = "200ms"
            [driver]
            keepalive = "{self.keepalive}s"
            grace = {self.grace}
            any_stream = true
            {driver}
            """


STEADY = Periods(keepalive=0.25, grace=32, announce=2.0)
"""For tests in which no lease may expire although a busy machine delays processes."""


class DriverService:
    """A process that runs `tensorpool driver run`; its `service:driver` answers commands."""

    def __init__(self, deployment: Deployment) -> None:
        self._ready = deployment.config.with_name(f"ready-{os.urandom(4).hex()}")
        settings = {
            "aeron.dir": deployment.aeron_dir,
            # The media driver is another process, so that the two can be killed separately.
            "aeron.media_driver": "external",
            "shm.base_dir": deployment.base,
        }
        arguments = ["driver", "run", "--config", str(deployment.config), "--ready-file", str(self._ready)]
        arguments += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        self.log = self._ready.with_suffix(".log")
        with self.log.open("wb") as log:
            self._process = deployment.fork_server.start(
                "tensorpool.cli:main", *arguments, pipes=False, log=log
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether the driver has written its ready file."""
        assert self.alive, self.log.read_text()
        return self._ready.exists()

    def kill(self) -> None:
        """Sends SIGKILL and reaps the process."""
        self._process.kill()
        self._process.wait(TIMEOUT_S)

    def stop(self) -> None:
        """Sends SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Sends SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """Sends SIGTERM and waits; returns the exit status."""
        self._process.terminate()
        # A failed test may have left the process stopped.
        self.resume()
        return self._process.wait(TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is not None:
            sys.stderr.write(self.log.read_text())
        if not self.alive:
            return
        if exc_type is not None:
            self.kill()
        else:
            assert self.end() == 0, self.log.read_text()


@dataclass(kw_only=True)
class Deployment(Environment):
    """All processes of one test, and the state that they have to reach."""

    config: Path
    wait_until: Callable[..., Any] = field(repr=False)
    fork_server: ForkServer = field(repr=False)
    is_isolated: bool = False
    """Whether the processes run with another clock than the test, which then cannot use their media
    driver."""
    _admin: tp.Context | RemoteProcess | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `tp.open` for a client of the driver."""
        return {
            "mode": "driver",
            "config": str(self.config),
            "aeron_dir": str(self.aeron_dir),
            "shm_base_dir": str(self.base),
            "media_driver": "external",
        }

    def process(self) -> RemoteProcess:
        """A client process without a context."""
        return self.start(ClientProcess)

    def start(
        self, role: Callable[..., object], *args: Any, env: dict[str, str] | None = None
    ) -> RemoteProcess:
        """A process with this role."""
        return self.stack.enter_context(RemoteProcess(role, *args, env=env, fork_server=self.fork_server))

    def close(self) -> None:
        """Ends all processes, the last first."""
        self.stack.close()

    def configure(self, periods: Periods, driver: str = "") -> None:
        """Writes the configuration of processes that start later."""
        self.config.write_text(periods.toml(driver))

    def service(self) -> DriverService:
        """A driver process that is ready."""
        service = self.stack.enter_context(DriverService(self))
        self.wait_until(lambda: service.ready, timeout=TIMEOUT_S)
        return service

    def streaming_producer(
        self, process: RemoteProcess | None = None, per_second: float = 500
    ) -> RemoteProcess:
        """A process whose producer offers frames all the time."""
        remote = self.producer(process)
        remote.call("offer_always", per_second=per_second)
        return remote

    def wait_epoch(self, *consumers: RemoteProcess, after: int = 0) -> int:
        """Waits until all consumers receive frames of the same epoch, later than `after`; returns it."""

        def newest() -> int:
            seen = {newest_epoch(consumer) for consumer in consumers}
            return min(seen) if len(seen) == 1 else 0

        self.wait_until(lambda: newest() > after, timeout=TIMEOUT_S)
        return newest()

    def wait_received(self, *consumers: RemoteProcess, more: int = 20) -> None:
        """Waits until each consumer has received more frames, of any epoch."""
        before = [consumer.call("received_count") for consumer in consumers]

        def have_more() -> bool:
            now = [consumer.call("received_count") for consumer in consumers]
            return all(count > old + more for count, old in zip(now, before, strict=True))

        self.until(have_more)

    def until(self, condition: Callable[..., Any], *args: Any) -> Any:
        """Waits for `condition(*args)`."""
        return self.wait_until(lambda: condition(*args), timeout=TIMEOUT_S)

    # --- commands of the driver

    def call_driver(self, command: str, **arguments: Any) -> Any:
        """Calls a command of `service:driver`; repeats it while a restarting driver does not answer."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return self._call_driver_once(command, arguments)
            except (tp.NoSuchService, tp.ServiceTimeout, RemoteError):
                if time.monotonic() > deadline:
                    raise

    def _call_driver_once(self, command: str, arguments: dict[str, Any]) -> Any:
        if self._admin is None:
            standalone = {**self.options, "mode": "standalone"}
            if self.is_isolated:
                self._admin = self.worker(**standalone)
            else:
                self._admin = self.stack.enter_context(tp.open(**standalone))
        if isinstance(self._admin, RemoteProcess):
            return self._admin.call("call_driver", command=command, arguments=arguments)
        return call_driver(self._admin, command, arguments)

    def leases(self) -> list[dict[str, Any]]:
        """Leases of the stream, by the driver."""
        rows: list[dict[str, Any]] = self.call_driver("leases", stream_id=self.stream_id)
        return rows

    def lease_ids(self) -> set[int]:
        """Ids of the leases of the stream, by the driver."""
        return {int(row["lease_id"]) for row in self.leases()}

    def wait_lease_gone(self, lease_id: int) -> None:
        """Waits until the driver has ended this lease."""
        self.until(lambda: lease_id not in self.lease_ids())

    def stream(self) -> dict[str, Any]:
        """State of the stream, by the driver."""
        rows: list[dict[str, Any]] = self.call_driver("streams", first=self.stream_id, limit=1)
        return rows[0]

    # --- expected states

    def wait_agreed(
        self, producer: RemoteProcess | None, consumers: Sequence[RemoteProcess], *, files: bool = False
    ) -> int:
        """Waits until driver and clients agree on the leases of exactly these processes and on one epoch,
        which with `files` is the only directory. Returns the epoch."""
        clients = [client for client in (producer, *consumers) if client is not None]
        last: tuple[Any, ...] = ()

        def agree() -> bool:
            nonlocal last
            own = sorted(lease for client in clients for lease in client.call("leases"))
            rows, stream = self.leases(), self.stream()
            epoch = int(stream["epoch"] or 0)
            writes = producer.call("producer_epoch") if producer else epoch
            maps = {consumer.call("mapped") for consumer in consumers}
            directories = self.epochs()
            last = (own, rows, stream, writes, maps, directories)
            return (
                len(own) == len(clients)
                and own == sorted(int(row["lease_id"]) for row in rows)
                and sum(row["role"] == "producer" for row in rows) == (producer is not None)
                and writes == epoch
                and maps <= {epoch}
                and (directories == {epoch} if files else epoch in directories)
            )

        try:
            self.until(agree)
        except BaseException:
            sys.stderr.write(f"driver and clients do not agree: {last}\n")
            raise
        return int(last[2]["epoch"])

    def wait_settled(self, producer: RemoteProcess | None, consumers: Sequence[RemoteProcess]) -> int:
        """Like `wait_agreed`, and waits until old epochs are removed, which takes the grace of a lease."""
        return self.wait_agreed(producer, consumers, files=True)

    def assert_balanced(
        self, producer: RemoteProcess, consumers: Sequence[RemoteProcess], *, files: bool = True
    ) -> None:
        """Checks that leases and files are those of these processes and that their ledgers add up to the same
        last frame. Ends offering and receiving."""
        self.wait_agreed(producer, consumers, files=files)
        outcomes = producer.call("stop_offering")["outcomes"]

        def is_received() -> bool:
            # Offer another last frame each time: a consumer that reattached may have missed the one before.
            if producer.call("offer") != "published":
                return False
            last = producer.call("producer_ledger")["next_seq"] - 1
            return all(consumer.call("consumer_ledger")["last_seq"] == last for consumer in consumers)

        self.wait_until(is_received, timeout=TIMEOUT_S)
        written = producer.call("producer_ledger")
        assert written["balanced"], written
        assert outcomes.keys() <= KNOWN_OUTCOMES
        assert written["dropped"]["detached"] >= outcomes.get("detached", 0)
        for consumer in consumers:
            receiving = consumer.call("stop_receiving")
            ledger = consumer.call("consumer_ledger")
            assert receiving["wrong"] == 0, "torn frames"
            assert ledger["balanced"], ledger
            assert ledger["received"] == sum(count for _, _, count in receiving["received"].values())
            assert ledger["outside"]["regressed"] == 0

    def assert_untorn(self, consumers: Sequence[RemoteProcess]) -> None:
        """Checks that no consumer has received a torn frame."""
        for consumer in consumers:
            assert consumer.call("receiving")["wrong"] == 0, "torn frames"

    def end_process(self, process: RemoteProcess) -> None:
        """Ends a process before the end of the test."""
        with suppress(BrokenPipeError):
            process.end()
