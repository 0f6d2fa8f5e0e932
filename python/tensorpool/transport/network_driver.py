"""The media driver for UDP channels, in a process of its own.

A datagram reaches the code of the media driver that has the channel, and a fault there ends its process. So
UDP channels never share a process with an SHM driver or with a user's program. A conductor starts this
process when the first UDP channel is opened, and starts it again when it ends. It ends with its parent.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path
from typing import Final

from ..errors import MediaDriverBusy, MediaDriverError
from .media_driver import MediaDriver

_MAX_DRIVERS: Final = 256
"""Programs of one media driver directory that use UDP at the same time."""
_PARENT_CHECK_S: Final = 0.5
# The package is found where it was found here, whatever the working directory.
_START: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from tensorpool.transport.network_driver import main; main(sys.argv[1:])"
)


def network_driver_command(aeron_dir: str, *, mode: int, timeout_s: float) -> list[str]:
    """The command line of the process; empty if this interpreter has no program file to start."""
    if not sys.executable:
        return []
    root = str(Path(__file__).parents[2])
    return [sys.executable, "-c", _START, root, aeron_dir, str(mode), str(timeout_s)]


def network_dir(aeron_dir: str, number: int) -> str:
    """The directory of one of the media drivers for UDP beside `aeron_dir`."""
    return f"{aeron_dir}-udp-{number}"


def main(arguments: list[str]) -> None:
    """Runs a media driver until the parent ends or closes the standard input."""
    aeron_dir, mode, timeout_s = arguments
    parent = os.getppid()
    # A service manager signals all processes of a service. The parent needs this one until it has closed.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        driver = _start(aeron_dir, int(mode), float(timeout_s))
    except MediaDriverError as error:
        sys.exit(f"media driver for UDP: {error}")
    with driver:
        print(driver.aeron_dir, flush=True)
        while os.getppid() == parent:
            if select.select([sys.stdin], [], [], _PARENT_CHECK_S)[0] and not os.read(0, 1):
                break


def _start(aeron_dir: str, mode: int, timeout_s: float) -> MediaDriver:
    """A media driver in the first directory that no other one uses."""
    for number in range(_MAX_DRIVERS):
        try:
            return MediaDriver(
                network_dir(aeron_dir, number), dir_mode=mode, driver_timeout=timeout_s, udp=True
            )
        except MediaDriverBusy:
            continue
    raise MediaDriverError(
        f"{_MAX_DRIVERS} programs use UDP beside {aeron_dir}; let them share one: tensorpool media-driver",
        aeron_dir=aeron_dir,
    )
