"""Is this machine fit, and if not, what is to be done?

The checks are pure: facts in, a verdict out. `examine` feeds them with those of this machine. It only looks:
starts nothing, makes no region, disturbs nobody.

All checks of this machine, in the order in which trouble is best looked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ..context.config import AeronSettings, ShmSettings
from ..driver import DriverSettings
from ..errors import InvalidConfig
from ..runtime.config import Config
from ..runtime.config.sources import FILE_VARIABLE
from ..transport import default_aeron_dir
from .checks import Check, Status, fail, ok, worst
from .drivers import check_media_driver, driver_checks, probe_media_driver
from .host import limit_checks, machine_checks, place_checks
from .memory import memory_checks
from .sizing import Needs, Sizing, check_fit, size_stream

__all__ = ["Check", "Needs", "Sizing", "Status", "check_fit", "run_checks", "size_stream", "worst"]


def run_checks(
    version: str, *, config_file: str | Path | None = None, aeron_dir: str | None = None
) -> list[Check]:
    """Every check, with the configuration that is in force; without one that can be used, with defaults.

    `version` is the package's own.
    """
    config, first = _configuration(config_file)
    aeron, shm, driver = config[AeronSettings], config[ShmSettings], config[DriverSettings]
    directory = str(aeron_dir or aeron.dir or default_aeron_dir())
    base = Path(shm.base_dir)
    wants_hugepages = driver.hugepages or any(one.hugepages for one in driver.streams)

    def media_driver() -> list[Check]:
        return check_media_driver(probe_media_driver(directory))

    def shm_driver() -> list[Check]:
        return driver_checks(
            base,
            shm.namespace,
            driver.instance_id,
            aeron_dir=directory,
            control_stream_id=aeron.control_stream_id,
        )

    checks = [first]
    for name, look in (
        ("machine", lambda: machine_checks(version)),
        ("memory", lambda: memory_checks(base, wants_hugepages=wants_hugepages)),
        ("directories", lambda: place_checks(base)),
        ("limits", lambda: limit_checks(wants_mlock=driver.mlock)),
        ("media driver", media_driver),
        ("SHM driver", shm_driver),
    ):
        checks += _guarded(name, look)
    return checks


def _configuration(named: str | Path | None) -> tuple[Config, Check]:
    given = named or os.environ.get(FILE_VARIABLE)
    file = Path(given) if given else None
    tables = (AeronSettings, ShmSettings, DriverSettings)
    try:
        config = Config.load(*tables, file=file)
    except InvalidConfig as error:
        broken = fail(
            "configuration", str(error), "Nothing that reads it starts.", "Correct it; --check says the same."
        )
        return Config.load(*tables, environ={}), broken
    return config, ok("configuration", str(file) if file else "no file; defaults and the environment")


def _guarded(name: str, look: Callable[[], list[Check]]) -> list[Check]:
    """A check that stumbles must not keep the others from being made."""
    try:
        return look()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        found = f"{where}{error.strerror or error}"
        return [
            fail(
                name, found, "This could not be looked at.", "Check the permissions, and try as another user."
            )
        ]
