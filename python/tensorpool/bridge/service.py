"""`service:bridge`: the status of a bridge instance (service §4).

Small, but every role has its service in `service.py`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ..runtime.config import Secret
from ..service import Service, command
from .status import BridgeStatus

if TYPE_CHECKING:
    from .agent import BridgeAgent

_MAX_ROWS: Final = 100


class BridgeService(Service, name="bridge"):
    """The mappings of a bridge and the ledgers of their frames."""

    def __init__(
        self, agent: BridgeAgent, *, instance: str | None = None, token: Secret | None = None
    ) -> None:
        super().__init__(instance=instance, token=token)
        self._agent = agent

    @command(reads=True)
    def status(self, first: int = 0, limit: int = 100) -> BridgeStatus:
        """The instance, its counters, and its mappings from number `first` on."""
        rows, network = self._agent.rows(), self._agent.network
        return {
            "instance": self._agent.settings.instance_id,
            "pid": os.getpid(),
            "total": len(rows),
            "key_ids": self._agent.key_ids,
            "media_driver": {
                "connected": network.connected,
                "connections": network.connections,
                "dir": network.dir,
                "pid": network.pid,
                "last_error": network.last_error,
            },
            "dest_stream_id_range": self._agent.dest_stream_id_range,
            "dest_stream_ids": self._agent.dest_stream_ids,
            "mappings": rows[max(first, 0) :][: max(min(limit, _MAX_ROWS), 1)],
            "counters": self._agent.counters.snapshot(),
        }
