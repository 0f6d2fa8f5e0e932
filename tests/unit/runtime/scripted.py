"""An agent that does as it is told."""

from __future__ import annotations

from typing import Any

from tensorpool.clock import ManualClock
from tensorpool.runtime import AgentFinished, Runner


class Scripted:
    """Does what each entry of its script says: a number is work, an exception is raised, a call is made."""

    def __init__(self, *script: Any, name: str = "scripted", log: list[str] | None = None) -> None:
        self.name = name
        self.log: list[str] = [] if log is None else log
        self._script = list(script)

    def on_start(self) -> None:
        self.log.append(f"{self.name} started")

    def do_work(self) -> int:
        step = self._script.pop(0) if self._script else AgentFinished()
        self.log.append(f"{self.name} turn")
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
