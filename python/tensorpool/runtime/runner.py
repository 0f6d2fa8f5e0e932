"""Runs an agent: on a thread of its own, in the caller's loop, or as the whole of a process.

with Runner(agent):            # a thread
    ...

runner.open()                  # the caller's loop
while busy:
    runner.step()
runner.close()

Runner(agent).run()            # blocks until SIGTERM, SIGINT or the agent's own end

An error in a turn is counted and logged, and the next turn comes. RoleFailed ends the run, in good order,
and is raised to whoever runs it: a command then ends with status 1.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import RoleFailed
from . import agent as agents
from .agent import Agent, AgentFinished, agent_name
from .counters import CounterSet, counter, gauge
from .idle import IdleStrategy, idle_strategy
from .logs import RateLimiter
from .process import Readiness, Signals

_LOG = logging.getLogger(__name__)
_ERROR_LOG_PERIOD_NS: Final = 5_000_000_000


class RunnerCounters(CounterSet, name="runtime"):
    """What a runner sees of its agent."""

    duty_cycles = counter("Turns that the agent took.", unit="cycles")
    work = counter("Pieces of work that the turns reported.", unit="pieces")
    errors = counter("Turns that ended with an error.", unit="errors", aeron=True)
    longest_cycle = gauge("The longest turn so far.", unit="nanoseconds")


class Runner:
    """One agent and the loop that drives it. Used once: opened, worked, closed."""

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
        # Plain flags: a handler that interrupts a lock's own holder could not set an Event.
        self._stop = False
        self._hangup = False
        self._thread: threading.Thread | None = None
        self._start_error: BaseException | None = None
        self._is_open = False
        self._was_opened = False

    # --- the caller's loop

    def open(self) -> None:
        """Starts the agent on this thread. What it raises is raised; it is closed then."""
        if self._was_opened:
            raise RuntimeError(f"{self.name}: a runner runs once; make another")
        self._was_opened = self._is_open = True
        try:
            self._readiness.starting()
            agents.start(self.agent)
        except BaseException as error:
            self._close_after(error)
            raise

    def step(self) -> int:
        """One turn. Raises nothing but RoleFailed; AgentFinished only makes `stopped` true."""
        if self._hangup:
            self._hangup = False
            self._reload()
        began = self._clock.monotonic_ns()
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
        counters.longest_cycle.raise_to(self._clock.monotonic_ns() - began)
        if not self._readiness.is_ready and not self.stopped and self._agent_is_ready():
            self._readiness.ready()
            _LOG.info("%s is ready", self.name)
        self._readiness.alive()
        return work

    @property
    def stopped(self) -> bool:
        """True once it was told to stop, or its agent has finished."""
        return self._stop

    def stop(self) -> None:
        """Ends the loop after the turn that is being taken. From any thread, and from a signal handler."""
        self._stop = True

    def hangup(self) -> None:
        """Asks for `on_hangup` before the next turn. From any thread, and from a signal handler."""
        self._hangup = True

    def close(self, timeout: float | None = None) -> None:
        """Stops, waits for the thread if there is one, closes the agent. RoleFailed is raised here if that
        is what ended the thread. Harmless when closed already."""
        self.stop()
        thread, self._thread = self._thread, None
        if thread is None:
            self._finish()
            return
        thread.join(timeout)
        if thread.is_alive():
            self._thread = thread
            raise TimeoutError(f"{self.name} did not end within {timeout:g} s; its turn takes too long")
        if self.error is not None:
            raise self.error

    # --- a thread

    def start(self) -> None:
        """Runs the agent on a thread of its own; returns when it has started, or raises why it has not."""
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
            # Kept for `close()`. Said here too: nobody may come to ask for hours.
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
        """Blocks until told to stop. On the main thread SIGTERM and SIGINT do that, SIGHUP asks for
        `on_hangup`; the handlers that were there before are put back at the end."""
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
        """Closes the agent; trouble on the way must not hide the error that is already there."""
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
        suppressed = self._errors.admit((type(error), _place_of(error)))
        if suppressed is not None:
            more = f" ({suppressed} more like this were suppressed)" if suppressed else ""
            _LOG.error(
                "%s: a turn failed: %s: %s%s", self.name, type(error).__name__, error, more, exc_info=error
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


def _place_of(error: Exception) -> tuple[str, int] | None:
    """The line that raised it: errors from elsewhere are another kind."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return None if traceback is None else (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
