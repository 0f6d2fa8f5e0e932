"""An agent whose duty cycles follow a script."""

from __future__ import annotations

from typing import Any

from tensorpool.clock import ManualClock
from tensorpool.runtime import AgentFinished, Runner


class ScriptedAgent:
    """Runs one entry of its script per duty cycle: a number to return, an exception or a function."""

    def __init__(self, *script: Any, name: str = "scripted", log: list[str] | None = None) -> None:
        self.name = name
        self.log: list[str] = [] if log is None else log
        self._script = list(script)

    def on_start(self) -> None:
        self.log.append(f"{self.name} started")

    def do_work(self) -> int:
        step = self._script.pop(0) if self._script else AgentFinished()
        self.log.append(f"{self.name} cycle")
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, int):
            return step
        step()
        return 0

    def on_close(self) -> None:
        self.log.append(f"{self.name} closed")


def runner_of(agent: object, **settings: object) -> Runner:
    return Runner(agent, idle="yield", clock=ManualClock(), **settings)  # type: ignore[arg-type]
