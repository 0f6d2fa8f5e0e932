"""`tensorpool media-driver`: Aeron's media driver in a process of its own."""

from __future__ import annotations

import logging

import click

from ..context.config import AeronSettings
from ..runtime.config import Config
from ..runtime.role import run_role
from ..transport import MediaDriver, default_aeron_dir
from .options import role_options
from .params import DefaultRunGroup

_EPILOG = """
\b
Examples:
  tensorpool media-driver --aeron-dir /dev/shm/aeron-network
  tensorpool media-driver --aeron-dir DIR --ready-file /run/network.ready
"""

_LOG = logging.getLogger(__name__)


class _MediaDriverAgent:
    """The agent of the role: the media driver works on threads of its own."""

    name = "media-driver"

    def __init__(self, settings: AeronSettings) -> None:
        self._settings = settings
        self._driver: MediaDriver | None = None

    def on_start(self) -> None:
        settings = self._settings
        self._driver = settings.scheduling.start(
            lambda: MediaDriver(
                str(settings.dir or default_aeron_dir()),
                dir_mode=settings.dir_mode,
                driver_timeout=settings.driver_timeout_ns / 1e9,
                udp=True,
            )
        )
        _LOG.info("media driver in %s", self._driver.aeron_dir)

    def do_work(self) -> int:
        return 0

    def on_close(self) -> None:
        if self._driver is not None:
            self._driver.close()


@click.group(cls=DefaultRunGroup, epilog=_EPILOG)
def media_driver() -> None:
    """Run Aeron's media driver in a process of its own.

    Without a verb, `run`. It serves `aeron:ipc` and UDP. Programs use it for all channels with `aeron.dir`,
    or for UDP alone with `aeron.network_dir`. Without these settings a program starts what it needs.
    """


@media_driver.command(epilog=_EPILOG)
@role_options(AeronSettings)
def run(config: Config) -> None:
    """Run it until SIGTERM or Ctrl-C."""
    run_role("media-driver", config, lambda: _MediaDriverAgent(config[AeronSettings]))
