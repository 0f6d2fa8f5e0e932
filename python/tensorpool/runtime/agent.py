"""Agents, which a runner drives in short duty cycles, and idle strategies, by which it waits between them.

An agent needs only `do_work`. A runner also uses these members where an agent has them:

- `name`: the name in logs;
- `on_start()`: called before the first duty cycle, on the runner's thread; an error here ends the role;
- `on_close()`: called after the last duty cycle, on the same thread; also after an error in `on_start`;
- `is_ready() -> bool`: called between duty cycles until true; without it an agent is ready once started;
- `on_reload(config)`: called after a reload that changed live settings.

An idle strategy waits after a duty cycle without work. The names are those of the native side. Shorter waits
reduce latency and use more processor time. A strategy belongs to one thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, cast, get_args, runtime_checkable

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ConfigError, RoleFailed


@runtime_checkable
class Agent(Protocol):
    """An object that works in duty cycles."""

    def do_work(self) -> int:
        """Runs one duty cycle, which never waits. Returns the amount of work done; 0 lets the runner idle."""
        ...


class AgentFinished(Exception):
    """Raised by `do_work` when the agent will never have work again. An orderly end, not an error."""


def agent_name(agent: Agent) -> str:
    """The agent's `name`, or its class name."""
    return str(getattr(agent, "name", None) or type(agent).__name__)


def start(agent: Agent) -> None:
    """Calls `on_start` where the agent has it."""
    _hook(agent, "on_start")()


def close(agent: Agent) -> None:
    """Calls `on_close` where the agent has it."""
    _hook(agent, "on_close")()


def is_ready(agent: Agent) -> bool:
    """The agent's `is_ready`; True for an agent without it."""
    return bool(_hook(agent, "is_ready", lambda: True)())


def reload(agent: Agent, config: object) -> None:
    """Calls `on_reload` where the agent has it."""
    _hook(agent, "on_reload", lambda _: None)(config)


def _hook(agent: Agent, name: str, otherwise: Callable[..., Any] = lambda: None) -> Callable[..., Any]:
    return cast("Callable[..., Any]", getattr(agent, name, otherwise))


class CompositeAgent:
    """Several agents on one thread: started and run in the given order, closed in reverse.

    An error of an agent does not stop the duty cycles of the others. An agent that finishes is closed at
    once; the composite finishes with its last agent.
    """

    def __init__(self, *agents: Agent, name: str | None = None) -> None:
        self._unstarted = list(agents)
        self._running: list[Agent] = []
        self.name = name or "+".join(agent_name(agent) for agent in agents)

    @property
    def agents(self) -> tuple[Agent, ...]:
        """All agents that have not finished."""
        return (*self._running, *self._unstarted)

    def on_start(self) -> None:
        """Starts the agents in order."""
        while self._unstarted:
            # Moved to the running agents first: an agent that fails to start is closed too.
            self._running.append(self._unstarted.pop(0))
            start(self._running[-1])

    def do_work(self) -> int:
        """Runs one duty cycle of every agent. Raises their errors after the last."""
        work = 0
        errors: list[Exception] = []
        for agent in tuple(self._running):
            try:
                work += agent.do_work()
            except AgentFinished:
                self._running.remove(agent)
                try:
                    close(agent)
                except Exception as error:
                    errors.append(error)
            except Exception as error:
                errors.append(error)
        if errors:
            raise _combined(errors)
        if not self._running:
            raise AgentFinished
        return work

    def is_ready(self) -> bool:
        """Whether all agents are ready."""
        return all(is_ready(agent) for agent in self._running)

    def on_reload(self, config: object) -> None:
        """Passes the configuration to every agent."""
        for agent in self._running:
            reload(agent, config)

    def on_close(self) -> None:
        """Closes the agents in reverse order; an error does not keep the others open."""
        errors: list[Exception] = []
        while self._running:
            try:
                close(self._running.pop())
            except Exception as error:
                errors.append(error)
        if errors:
            raise _combined(errors)


def _combined(errors: list[Exception]) -> Exception:
    """The error that ends the role if there is one, else the only error, else a group of all."""
    fatal = [error for error in errors if isinstance(error, RoleFailed)]
    if fatal or len(errors) == 1:
        return (fatal or errors)[0]
    return ExceptionGroup("several agents failed in one duty cycle", errors)


IdleName = Literal["backoff", "busy-spin", "yield", "sleep"]
DEFAULT_PERIOD_NS: Final = 20_000_000

# A Python duty cycle takes tens of microseconds, and other threads wait for the interpreter meanwhile. So
# there are fewer spins than in native strategies.
_SPINS: Final = 10
_YIELDS: Final = 5
_YIELDS_IN_A_ROW: Final = 16
_MIN_PARK_NS: Final = 50_000
# Longer sleeps come only after a long time without work, and are at most this part of it.
_SHORT_PARK_NS: Final = 5_000_000
# Leases end and files of others are noticed this much later.
_MAX_WAIT_S: Final = 0.1
_REST_PART: Final = 64


class IdleStrategy(Protocol):
    """A way to wait between duty cycles."""

    def idle(self, work: int) -> None:
        """Waits if the last duty cycle returned no work."""
        ...


class BackoffIdle:
    """Spins, then yields, then sleeps with doubled times up to 5 ms, and when there is no work for long, up
    to `period_ns`: almost no load when idle.

    An agent with a `wait`, which takes seconds and ends early when there is something to do, then waits
    there, up to 100 ms at a time.
    """

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        period_ns: int = DEFAULT_PERIOD_NS,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._clock = clock
        self._period_ns = period_ns
        self._wait = wait
        self._idle_cycles = 0
        self._park_ns = min(_MIN_PARK_NS, period_ns)
        self._idle_ns = 0

    def idle(self, work: int) -> None:
        """Waits longer with every duty cycle without work."""
        if work > 0:
            self._idle_cycles = self._idle_ns = 0
            self._park_ns = min(_MIN_PARK_NS, self._period_ns)
            return
        self._idle_cycles += 1
        if self._idle_cycles <= _SPINS:
            return
        if self._idle_cycles <= _SPINS + _YIELDS:
            os.sched_yield()
            return
        if self._wait is not None and self._park_ns >= self._period_ns:
            self._wait(_MAX_WAIT_S)
            return
        self._clock.sleep(self._park_ns / 1e9)
        self._idle_ns += self._park_ns
        longest_ns = max(_SHORT_PARK_NS, self._idle_ns // _REST_PART)
        self._park_ns = min(self._park_ns * 2, longest_ns, self._period_ns)


class BusySpinIdle:
    """Never waits: uses the core completely."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, period_ns: int = DEFAULT_PERIOD_NS) -> None:
        pass

    def idle(self, work: int) -> None:
        """Returns at once."""


class YieldIdle:
    """Yields the core to other runnable threads, and sleeps briefly after every sixteenth time.

    Linux 6.18 takes a time slice from a thread for each yield: threads which only yield starve one another,
    and whatever else runs on their cores, for minutes.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, period_ns: int = DEFAULT_PERIOD_NS) -> None:
        self._idle_cycles = 0

    def idle(self, work: int) -> None:
        """Yields once, or sleeps."""
        if work > 0:
            return
        self._idle_cycles += 1
        if self._idle_cycles % _YIELDS_IN_A_ROW:
            os.sched_yield()
        else:
            # About the core, not about the agent's clock.
            time.sleep(_MIN_PARK_NS / 1e9)


class SleepIdle:
    """Sleeps `period_ns` after every duty cycle without work."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, period_ns: int = DEFAULT_PERIOD_NS) -> None:
        self._clock = clock
        self._period_ns = period_ns

    def idle(self, work: int) -> None:
        """Sleeps one period."""
        if work <= 0:
            self._clock.sleep(self._period_ns / 1e9)


_STRATEGIES: dict[str, Callable[[Clock, int], IdleStrategy]] = {
    "backoff": BackoffIdle,
    "busy-spin": BusySpinIdle,
    "yield": YieldIdle,
    "sleep": SleepIdle,
}
IDLE_NAMES: Final[tuple[str, ...]] = get_args(IdleName)


def idle_strategy(
    name: str, *, clock: Clock = SYSTEM_CLOCK, period_ns: int = DEFAULT_PERIOD_NS
) -> IdleStrategy:
    """A new strategy by its name. Raises ConfigError for an unknown name."""
    if name not in _STRATEGIES:
        raise ConfigError(f"idle strategy {name!r}: use {', '.join(IDLE_NAMES[:-1])} or {IDLE_NAMES[-1]}")
    return _STRATEGIES[name](clock, period_ns)
