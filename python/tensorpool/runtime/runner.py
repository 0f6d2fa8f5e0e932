"""Runners: an agent driven on a thread of its own, in the caller's loop, or as a whole process.

with Runner(agent):            # a thread
    ...

runner.open()                  # the caller's loop
while busy:
    runner.step()
runner.close()

Runner(agent).run()            # blocks until SIGTERM, SIGINT or the agent's own end

An error in a duty cycle is counted and logged, and the runner continues. RoleFailed ends the run in good
order and is raised to the caller; a command then has exit status 1.

`Readiness` is the ready file and the systemd notifications of a role, `Signals` the signals of its process.
Both belong to the thread that runs the role. Errors of a notification are logged and never end the role.
Signal handlers only set a flag for the runner's loop.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..durable import replace_file
from ..errors import ConfigError, RoleFailed
from ..shm.epoch_files import is_alive
from . import agent as agents
from .agent import Agent, AgentFinished, IdleStrategy, agent_name, idle_strategy
from .counters import CounterSet, counter, gauge
from .logs import RateLimiter

_LOG = logging.getLogger(__name__)


class Readiness:
    """Reports the state of a role: `ready()`, then `alive()` between its duty cycles, then `stopping()`.

    The file has the process id. It is created atomically and removed when the role stops. `starting()`
    removes the file of a dead process and keeps the file of a live one.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._path = path
        self._clock = clock
        self._notify = _Notifier(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog_ns = _watchdog_period_ns(environ)
        self._next_alive_ns = 0
        self.is_ready = False

    def starting(self) -> None:
        """Prepares the file before the role starts. Raises ConfigError if its directory is missing."""
        if self._path is None:
            return
        if not self._path.parent.is_dir():
            raise ConfigError(
                f"ready file {self._path}: there is no directory {self._path.parent}; create it, or change "
                "runtime.ready_file"
            )
        holder = _pid_in(self._path)
        if holder is None or holder == os.getpid() or not is_alive(holder):
            self._path.unlink(missing_ok=True)

    def ready(self, status: str = "") -> None:
        """Writes the file and notifies systemd, once."""
        if self.is_ready:
            return
        self.is_ready = True
        if self._path is not None:
            self._write(self._path)
        self._notify("READY=1", *([f"STATUS={status}"] if status else []))

    def reloading(self) -> None:
        """Reports the start of a reload. systemd waits for `reloaded()`."""
        self._notify("RELOADING=1", f"MONOTONIC_USEC={self._clock.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """Reports the end of a reload."""
        self._notify("READY=1")

    def alive(self) -> None:
        """Notifies systemd's watchdog twice per watchdog period. Cheap enough for every duty cycle."""
        if self._watchdog_ns and (now := self._clock.monotonic_ns()) >= self._next_alive_ns:
            self._next_alive_ns = now + self._watchdog_ns // 2
            self._notify("WATCHDOG=1", timeout_s=0)

    def stopping(self) -> None:
        """Notifies systemd and removes the file."""
        self._notify("STOPPING=1")
        # Another process may have replaced the file: only a file with our process id is removed.
        if self._path is not None and self.is_ready and _pid_in(self._path) == os.getpid():
            self._path.unlink(missing_ok=True)
        self.is_ready = False

    def _write(self, path: Path) -> None:
        # A reader must never see it half-written. Not synced: it means nothing after a restart of the host.
        try:
            replace_file(path, f"{os.getpid()}\n".encode(), sync=False)
        except OSError as error:
            _LOG.error("cannot write the ready file %s: %s", path, error.strerror or error)


class _Notifier:
    """Sends state changes to systemd's notification socket, where there is one."""

    def __init__(self, address: str) -> None:
        # A leading @ is the NUL of Linux's abstract socket namespace.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._is_usable = address.startswith(("/", "@"))

    def __call__(self, *lines: str, timeout_s: float = 1.0) -> None:
        if not self._is_usable:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                # A full socket queue must not block the role for long.
                out.settimeout(timeout_s)
                out.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            _LOG.warning("cannot notify %r: %s", self._address, error.strerror or error)


def _watchdog_period_ns(environ: Mapping[str, str]) -> int:
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0
    period = environ.get("WATCHDOG_USEC", "")
    return int(period) * 1000 if period.isdecimal() else 0


def _pid_in(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 and int(text) else None


class Signals:
    """Signal handlers of a `with` block: SIGTERM and SIGINT call `stop`, SIGHUP calls `hangup` if given.

    A second SIGINT has the effect from before the block (it interrupts), for an orderly stop that takes too
    long. Outside the main thread, where Python allows no handlers, the block changes nothing.
    """

    def __init__(self, *, stop: Callable[[], None], hangup: Callable[[], None] | None = None) -> None:
        self._stop = stop
        self._hangup = hangup
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._install(signal.SIGTERM, self._on_stop)
            self._install(signal.SIGINT, self._on_stop)
            if self._hangup is not None:
                self._install(signal.SIGHUP, self._on_hangup)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _install(self, number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> None:
        before = signal.signal(number, handler)
        # None is a handler that was not set from Python; Python cannot restore it.
        self._before[number] = signal.SIG_DFL if before is None else before

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        self._stop()
        if number == signal.SIGINT:
            signal.signal(number, self._before[signal.SIGINT])

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        if self._hangup is not None:
            self._hangup()


_ERROR_LOG_PERIOD_NS: Final = 5_000_000_000


class RunnerCounters(CounterSet, name="runtime"):
    """Counters of a runner about its agent."""

    duty_cycles = counter("Duty cycles of the agent.", unit="cycles")
    work = counter("Pieces of work that the duty cycles returned.", unit="pieces")
    errors = counter("Duty cycles that raised an error.", unit="errors", aeron=True)
    longest_cycle = gauge("Longest duty cycle so far.", unit="nanoseconds")


class Runner:
    """One agent and the loop that drives it. A runner is used once: opened, stepped, closed."""

    def __init__(
        self,
        agent: Agent,
        *,
        idle: str | IdleStrategy = "backoff",
        clock: Clock = SYSTEM_CLOCK,
        readiness: Readiness | None = None,
        counters: RunnerCounters | None = None,
        on_hangup: Callable[[], None] | None = None,
        error_log_period_ns: int = _ERROR_LOG_PERIOD_NS,
    ) -> None:
        self.agent = agent
        self.name = agent_name(agent)
        self.counters = counters or RunnerCounters()
        self.error: BaseException | None = None
        self._idle = idle_strategy(idle, clock=clock) if isinstance(idle, str) else idle
        self._clock = clock
        self._readiness = readiness or Readiness(environ={}, clock=clock)
        self._on_hangup = on_hangup
        self._errors = RateLimiter(window_ns=error_log_period_ns, clock=clock)
        # Plain flags: a signal handler that interrupts the holder of an Event's lock could not set the Event.
        self._stop = False
        self._hangup = False
        self._thread: threading.Thread | None = None
        self._start_error: BaseException | None = None
        self._is_open = False
        self._was_opened = False

    # --- the caller's loop

    def open(self) -> None:
        """Starts the agent on this thread. If the start fails, closes the agent and raises the error."""
        if self._was_opened:
            raise RuntimeError(f"{self.name}: this runner has run already; create a new Runner")
        self._was_opened = self._is_open = True
        try:
            self._readiness.starting()
            agents.start(self.agent)
        except BaseException as error:
            self._close_after(error)
            raise

    def step(self) -> int:
        """Runs one duty cycle. Raises only RoleFailed; AgentFinished sets `stopped`."""
        if self._hangup:
            self._hangup = False
            self._reload()
        started_ns = self._clock.monotonic_ns()
        work = 0
        try:
            work = self.agent.do_work()
        except AgentFinished:
            self.stop()
        except RoleFailed:
            raise
        except Exception as error:
            self._report(error)
        counters = self.counters
        counters.duty_cycles.add()
        counters.work.add(max(work, 0))
        counters.longest_cycle.raise_to(self._clock.monotonic_ns() - started_ns)
        if not self._readiness.is_ready and not self.stopped and self._agent_is_ready():
            self._readiness.ready()
            _LOG.info("%s is ready", self.name)
        self._readiness.alive()
        return work

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called or the agent has finished."""
        return self._stop

    def stop(self) -> None:
        """Ends the loop after the current duty cycle. For any thread, and for signal handlers."""
        self._stop = True

    def hangup(self) -> None:
        """Requests `on_hangup` before the next duty cycle. For any thread, and for signal handlers."""
        self._hangup = True

    def close(self, timeout: float | None = None) -> None:
        """Stops the loop, joins the thread if there is one, closes the agent. Raises the error that ended
        the thread. Does nothing when closed already."""
        self.stop()
        thread, self._thread = self._thread, None
        if thread is None:
            self._finish()
            return
        thread.join(timeout)
        if thread.is_alive():
            self._thread = thread
            raise TimeoutError(
                f"{self.name} did not end within {timeout:g} s: a duty cycle takes too long; "
                "close it again with a longer timeout"
            )
        if self.error is not None:
            raise self.error

    # --- a thread

    def start(self) -> None:
        """Runs the agent on a new thread. Returns when it has started, or raises the error of its start."""
        started = threading.Event()
        self._thread = threading.Thread(target=self._body, args=(started,), name=self.name, daemon=True)
        self._thread.start()
        started.wait()
        if self._start_error is not None:
            self._thread.join()
            self._thread = None
            raise self._start_error

    def _body(self, started: threading.Event) -> None:
        try:
            self.open()
        except BaseException as error:
            self._start_error = error
            return
        finally:
            started.set()
        try:
            self._loop()
        except BaseException as error:
            # `close()` raises it. It is logged here too, because `close()` may be called much later.
            self.error = error
            _LOG.error("%s stopped: %s", self.name, error, exc_info=not isinstance(error, RoleFailed))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- a process

    def run(self) -> None:
        """Runs the agent and blocks until `stop`. On the main thread SIGTERM and SIGINT call `stop`, and
        SIGHUP calls `hangup`; the previous handlers are restored at the end."""
        with Signals(stop=self.stop, hangup=self.hangup if self._on_hangup else None):
            self.open()
            self._loop()

    def _loop(self) -> None:
        try:
            while not self.stopped:
                self._idle.idle(self.step())
        except BaseException as error:
            self._close_after(error)
            raise
        self._finish()

    # --- the end

    def _close_after(self, error: BaseException) -> None:
        """Closes the agent after an error. A second error while closing is only logged."""
        self._stop = True
        try:
            self._finish()
        except Exception:
            _LOG.exception("%s could not be closed after %s", self.name, type(error).__name__)

    def _finish(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._readiness.stopping()
        if suppressed := self._errors.suppressed:
            _LOG.error("%s: %d more errors were suppressed", self.name, suppressed)
        agents.close(self.agent)

    # --- errors and reloads

    def _report(self, error: Exception) -> None:
        self.counters.errors.add()
        suppressed = self._errors.admit((type(error), _raising_line(error)))
        if suppressed is not None:
            more = f" ({suppressed} more like this were suppressed)" if suppressed else ""
            _LOG.error(
                "%s: a duty cycle failed: %s: %s%s",
                self.name,
                type(error).__name__,
                error,
                more,
                exc_info=error,
            )

    def _agent_is_ready(self) -> bool:
        try:
            return agents.is_ready(self.agent)
        except Exception as error:
            self._report(error)
            return False

    def _reload(self) -> None:
        if self._on_hangup is None:
            return
        self._readiness.reloading()
        try:
            self._on_hangup()
        except RoleFailed:
            raise
        except Exception as error:
            self._report(error)
        finally:
            self._readiness.reloaded()


def _raising_line(error: Exception) -> tuple[str, int] | None:
    """File and line that raised the error: errors of other lines are limited separately."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return None if traceback is None else (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
