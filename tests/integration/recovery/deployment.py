"""A driver as a service, its clients, and an account of everything that they have: each a process."""

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
# What an offer may come to while others die: in the ring or not, it says so.
KNOWN_OUTCOMES = {"published", "detached", "not_connected", "closed", "back_pressured"}


@dataclass(frozen=True)
class Periods:
    """How often what is said. Short, so that every fault is over soon."""

    keepalive: float = 0.1
    grace: int = 5
    announce: float = 0.1

    @property
    def lease(self) -> float:
        return self.keepalive * self.grace

    def toml(self, driver: str = "") -> str:
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


STEADY = Periods(grace=20, announce=0.5)
"""Where nothing may happen to those who are well: a busy machine holds them up for a while, too."""


class DriverService:
    """`tensorpool driver run` in a process of its own; it answers by `service:driver`."""

    def __init__(self, fleet: Deployment) -> None:
        self._ready = fleet.config.with_name(f"ready-{os.urandom(4).hex()}")
        settings = {
            "aeron.dir": fleet.aeron_dir,
            # With a media driver elsewhere: the two die separately.
            "aeron.media_driver": "external",
            "shm.base_dir": fleet.base,
        }
        arguments = ["driver", "run", "--config", str(fleet.config), "--ready-file", str(self._ready)]
        arguments += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        self.log = self._ready.with_suffix(".log")
        with self.log.open("wb") as log:
            self._process = fleet.fork_server.start("tensorpool.cli:main", *arguments, pipes=False, log=log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def ready(self) -> bool:
        assert self.alive, self.log.read_text()
        return self._ready.exists()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """SIGTERM, and the status it ended with."""
        self._process.terminate()
        # A test that failed may have left it stopped.
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
    """All processes of one test, and what there has to be when they have settled."""

    config: Path
    wait_until: Callable[..., Any] = field(repr=False)
    fork_server: ForkServer = field(repr=False)
    is_elsewhere: bool = False
    """The processes do not live in the same world as the test, which so cannot join them."""
    _admin: tp.Context | RemoteProcess | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {
            "mode": "driver",
            "config": str(self.config),
            "aeron_dir": str(self.aeron_dir),
            "shm_base_dir": str(self.base),
            "media_driver": "external",
        }

    def process(self) -> RemoteProcess:
        return self.start(ClientProcess)

    def start(
        self, role: Callable[..., object], *args: Any, env: dict[str, str] | None = None
    ) -> RemoteProcess:
        """A process with that role."""
        return self._stack.enter_context(RemoteProcess(role, *args, env=env, fork_server=self.fork_server))

    def close(self) -> None:
        """Ends all processes, the last first."""
        self._stack.close()

    def configure(self, times: Periods, driver: str = "") -> None:
        """For the processes that start from now on."""
        self.config.write_text(times.toml(driver))

    def service(self) -> DriverService:
        """A running SHM driver."""
        service = self._stack.enter_context(DriverService(self))
        self.wait_until(lambda: service.ready, timeout=TIMEOUT_S)
        return service

    def streaming(self, process: RemoteProcess | None = None, per_second: float = 500) -> RemoteProcess:
        """A producer that offers frames all the time."""
        remote = self.producer(process)
        remote.call("offer_always", per_second=per_second)
        return remote

    def flow(self, *consumers: RemoteProcess, after: int = 0) -> int:
        """Waits until all of them receive frames of a later epoch than `after`; gives the epoch."""

        def newest() -> int:
            seen = {newest_epoch(consumer) for consumer in consumers}
            return min(seen) if len(seen) == 1 else 0

        self.wait_until(lambda: newest() > after, timeout=TIMEOUT_S)
        return newest()

    def receives(self, *consumers: RemoteProcess, more: int = 20) -> None:
        """Waits until each of them has received some more frames, whatever their epoch."""
        before = [consumer.call("received_count") for consumer in consumers]

        def have_more() -> bool:
            now = [consumer.call("received_count") for consumer in consumers]
            return all(count > old + more for count, old in zip(now, before, strict=True))

        self.until(have_more)

    def until(self, condition: Callable[..., Any], *args: Any) -> Any:
        """Waits for `condition(*args)`."""
        return self.wait_until(lambda: condition(*args), timeout=TIMEOUT_S)

    # --- what the driver says

    def ask(self, command: str, **arguments: Any) -> Any:
        """A command of `service:driver`, again if nobody answers: the driver may just be coming back."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return self._ask(command, arguments)
            except (tp.NoSuchService, tp.ServiceTimeout, RemoteError):
                if time.monotonic() > deadline:
                    raise

    def _ask(self, command: str, arguments: dict[str, Any]) -> Any:
        if self._admin is None:
            alone = {**self.options, "mode": "standalone"}
            if self.is_elsewhere:
                self._admin = self.worker(**alone)
            else:
                self._admin = self._stack.enter_context(tp.open(**alone))
        if isinstance(self._admin, RemoteProcess):
            return self._admin.call("ask", command=command, arguments=arguments)
        return call_driver(self._admin, command, arguments)

    def leases(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.ask("leases", stream_id=self.stream_id)
        return rows

    def lease_ids(self) -> set[int]:
        return {int(row["lease_id"]) for row in self.leases()}

    def gone(self, lease_id: int) -> None:
        """Waits until the driver has no such lease any more."""
        self.until(lambda: lease_id not in self.lease_ids())

    def stream(self) -> dict[str, Any]:
        rows: list[dict[str, Any]] = self.ask("streams", first=self.stream_id, limit=1)
        return rows[0]

    # --- what has to be true

    def agreed(
        self, producer: RemoteProcess | None, consumers: Sequence[RemoteProcess], *, files: bool = False
    ) -> int:
        """Waits until driver and clients agree: exactly the leases of these processes, and one epoch; with
        `files` its directory and no other. Gives the epoch."""
        members = [one for one in (producer, *consumers) if one is not None]
        last: tuple[Any, ...] = ()

        def agree() -> bool:
            nonlocal last
            own = sorted(lease for one in members for lease in one.call("leases"))
            rows, stream = self.leases(), self.stream()
            epoch = int(stream["epoch"] or 0)
            writes = producer.call("producer_epoch") if producer else epoch
            maps = {one.call("mapped") for one in consumers}
            there = self.epochs()
            last = (own, rows, stream, writes, maps, there)
            return (
                len(own) == len(members)
                and own == sorted(int(row["lease_id"]) for row in rows)
                and sum(row["role"] == "producer" for row in rows) == (producer is not None)
                and writes == epoch
                and maps <= {epoch}
                and (there == {epoch} if files else epoch in there)
            )

        try:
            self.until(agree)
        except BaseException:
            sys.stderr.write(f"no agreement: {last}\n")
            raise
        return int(last[2]["epoch"])

    def settled(self, producer: RemoteProcess | None, consumers: Sequence[RemoteProcess]) -> int:
        """The same when everything old is gone too, which takes a lease's grace."""
        return self.agreed(producer, consumers, files=True)

    def accounts(
        self, producer: RemoteProcess, consumers: Sequence[RemoteProcess], *, files: bool = True
    ) -> None:
        """All is well in the end: leases and files are those of these processes, and the ledgers of both
        sides add up, to the same end. Nothing is offered or received after it."""
        self.agreed(producer, consumers, files=files)
        outcomes = producer.call("stop_offering")["outcomes"]

        def is_heard() -> bool:
            # A last frame now and then: the one before may have gone out while somebody reattached.
            if producer.call("offer") != "published":
                return False
            last = producer.call("producer_ledger")["next_seq"] - 1
            heard = [one.call("consumer_ledger")["last_seq"] for one in consumers]
            return all(seq == last for seq in heard)

        self.wait_until(is_heard, timeout=TIMEOUT_S)
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

    def untorn(self, consumers: Sequence[RemoteProcess]) -> None:
        for consumer in consumers:
            assert consumer.call("receiving")["wrong"] == 0, "torn frames"

    def dismiss(self, process: RemoteProcess) -> None:
        """Ends a process that is not needed any more."""
        with suppress(BrokenPipeError):
            process.end()
