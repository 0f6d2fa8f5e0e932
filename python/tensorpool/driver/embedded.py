"""A driver inside a program: the agent of the service, on its own thread."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from ..errors import MediaDriverUnavailable
from ..runtime.agent import BackoffIdle
from ..runtime.runner import Runner
from .agent import DriverAgent

_READY_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.001


class EmbeddedDriver:
    """A running driver, from its creation to `close`."""

    def __init__(self, agent: DriverAgent, *, timeout: float = _READY_TIMEOUT_S) -> None:
        """Starts the driver. Raises DriverAlreadyRunning if another driver runs, MediaDriverUnavailable
        without a media driver."""
        self.agent = agent
        self._runner = Runner(agent, idle=BackoffIdle(wait=agent.wait))
        self._runner.start()
        deadline = time.monotonic() + timeout
        while not self.is_ready:
            if time.monotonic() > deadline or self._runner.stopped:
                self.close()
                raise MediaDriverUnavailable(
                    f"the media driver in {agent.aeron_dir} opened no streams for the SHM driver within "
                    f"{timeout:g} s; check that it runs",
                    aeron_dir=agent.aeron_dir,
                )
            time.sleep(_POLL_S)

    @property
    def is_ready(self) -> bool:
        """Whether the driver runs and its streams are open."""
        return not self._runner.stopped and self.agent.is_ready()

    @property
    def is_running(self) -> bool:
        """False after `close` or an order to stop."""
        return not self._runner.stopped

    def close(self) -> None:
        """Announces the shutdown and removes all regions. Does nothing when closed already."""
        self._runner.stop()
        self.agent.end_wait()
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
