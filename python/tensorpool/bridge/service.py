"""`service:bridge`: a bridge instance as others see it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..runtime.config import Secret
from ..service import Service, command

if TYPE_CHECKING:
    from .agent import BridgeAgent


class BridgeService(Service, name="bridge"):
    """Which streams cross, and what became of their frames."""

    def __init__(
        self, agent: BridgeAgent, *, instance: str | None = None, token: Secret | None = None
    ) -> None:
        super().__init__(instance=instance, token=token)
        self._agent = agent

    @command
    def status(self, first: int = 0, limit: int = 100) -> dict[str, Any]:
        """The instance and its mappings, from the one numbered `first` on."""
        rows = self._agent.rows()
        return {
            "instance": self._agent.settings.instance_id,
            "pid": os.getpid(),
            "total": len(rows),
            "mappings": rows[max(first, 0) :][: max(min(limit, 100), 1)],
            "counters": self._agent.counters.snapshot(),
        }
