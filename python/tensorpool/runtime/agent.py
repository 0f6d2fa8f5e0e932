"""Agents: work that is done in small turns by whoever runs them.

An agent needs only `do_work`. What else it may have is looked for by name:

- `name`: what it is called in logs;
- `on_start()`: before the first turn, on the thread that will run it; an error here ends the role;
- `on_close()`: after the last turn, on the same thread; also after an error, even one of `on_start`;
- `is_ready() -> bool`: asked between turns until it is true; without it an agent is ready once started;
- `on_reload(config)`: settings that may change live have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast, runtime_checkable

from ..errors import RoleFailed


@runtime_checkable
class Agent(Protocol):
    """Something that works in turns."""

    def do_work(self) -> int:
        """One short turn that never waits. Returns how much was done; 0 lets the runner idle."""
        ...


class AgentFinished(Exception):
    """Raised by `do_work` when there is nothing left to do, ever. An orderly end, not an error."""


def agent_name(agent: Agent) -> str:
    return str(getattr(agent, "name", None) or type(agent).__name__)


def start(agent: Agent) -> None:
    _hook(agent, "on_start")()


def close(agent: Agent) -> None:
    _hook(agent, "on_close")()


def is_ready(agent: Agent) -> bool:
    return bool(_hook(agent, "is_ready", lambda: True)())


def reload(agent: Agent, config: object) -> None:
    _hook(agent, "on_reload", lambda _: None)(config)


def _hook(agent: Agent, name: str, otherwise: Callable[..., Any] = lambda: None) -> Callable[..., Any]:
    return cast("Callable[..., Any]", getattr(agent, name, otherwise))


class CompositeAgent:
    """Several agents on one thread, in the order given; closed in the reverse order.

    One that fails does not keep the others from their turn. One that finishes is closed at once, and the
    whole finishes with the last.
    """

    def __init__(self, *agents: Agent, name: str | None = None) -> None:
        self._waiting = list(agents)
        self._running: list[Agent] = []
        self.name = name or "+".join(agent_name(agent) for agent in agents)

    @property
    def agents(self) -> tuple[Agent, ...]:
        return (*self._running, *self._waiting)

    def on_start(self) -> None:
        while self._waiting:
            # Counted as running first: one that fails to start is closed too.
            self._running.append(self._waiting.pop(0))
            start(self._running[-1])

    def do_work(self) -> int:
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
            raise _foremost(errors)
        if not self._running:
            raise AgentFinished
        return work

    def is_ready(self) -> bool:
        return all(is_ready(agent) for agent in self._running)

    def on_reload(self, config: object) -> None:
        for agent in self._running:
            reload(agent, config)

    def on_close(self) -> None:
        errors: list[Exception] = []
        while self._running:
            try:
                close(self._running.pop())
            except Exception as error:
                errors.append(error)
        if errors:
            raise _foremost(errors)


def _foremost(errors: list[Exception]) -> Exception:
    """The one that ends the role if there is such a one, else the only one, else all in a group."""
    fatal = [error for error in errors if isinstance(error, RoleFailed)]
    if fatal or len(errors) == 1:
        return (fatal or errors)[0]
    return ExceptionGroup("several agents failed in one turn", errors)
