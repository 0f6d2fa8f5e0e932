"""Agents: objects that a runner drives in short duty cycles.

An agent needs only `do_work`. A runner also uses these members where an agent has them:

- `name`: the name in logs;
- `on_start()`: called before the first duty cycle, on the runner's thread; an error here ends the role;
- `on_close()`: called after the last duty cycle, on the same thread; also after an error in `on_start`;
- `is_ready() -> bool`: called between duty cycles until true; without it an agent is ready once started;
- `on_reload(config)`: called after a reload that changed live settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast, runtime_checkable

from ..errors import RoleFailed


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
