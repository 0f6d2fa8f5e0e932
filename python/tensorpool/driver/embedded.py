"""A driver inside a program: the same agent as the service's, on a thread of its own."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from ..errors import MediaDriverUnavailable
from ..runtime.runner import Runner
from .agent import DriverAgent

_READY_TIMEOUT_S: Final = 10.0


class EmbeddedDriver:
    """Runs from its making until it is closed."""

    def __init__(self, agent: DriverAgent, *, timeout: float = _READY_TIMEOUT_S) -> None:
        """Raises DriverHeld if there is a driver already, MediaDriverUnavailable without a media driver."""
        self.agent = agent
        self._runner = Runner(agent)
        self._runner.start()
        deadline = time.monotonic() + timeout
        while not self.is_ready:
            if time.monotonic() > deadline or self._runner.stopped:
                self.close()
                raise MediaDriverUnavailable(
                    f"the media driver in {agent.aeron_dir} gave the driver no streams; check that it runs",
                    aeron_dir=agent.aeron_dir,
                )
            time.sleep(0.001)

    @property
    def is_ready(self) -> bool:
        return not self._runner.stopped and self.agent.is_ready()

    @property
    def is_running(self) -> bool:
        """False once it was closed, or told to stop."""
        return not self._runner.stopped

    def close(self) -> None:
        """Says goodbye to all clients and removes all memory. Harmless when closed already."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
