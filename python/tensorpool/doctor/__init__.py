"""Checks whether this machine is fit for TensorPool, with a remedy for each problem.

The `check_...` functions are pure: facts in, a finding out. `run_checks` reads the facts of this machine. It
reads only: it starts nothing and creates no region.
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
from ..transport.media_driver import network_dirs
from .checks import Check, CheckStatus, fail, ok, worst
from .drivers import check_media_driver, check_network_drivers, driver_checks, probe_media_driver
from .host import check_gpu, directory_checks, limit_checks, machine_checks, read_gpu_facts
from .memory import memory_checks
from .sizing import Needs, Sizing, check_fit, size_stream

__all__ = ["Check", "CheckStatus", "Needs", "Sizing", "check_fit", "run_checks", "size_stream", "worst"]


def run_checks(
    version: str, *, config_file: str | Path | None = None, aeron_dir: str | None = None
) -> list[Check]:
    """All checks, in the order in which problems are best looked for.

    They use the configuration in force, or defaults if it is invalid. `version` is the package's own.
    """
    config, first = _configuration(config_file)
    aeron, shm, driver = config[AeronSettings], config[ShmSettings], config[DriverSettings]
    directory = str(aeron_dir or aeron.dir or default_aeron_dir())
    base = Path(shm.base_dir)
    wants_hugepages = driver.hugepages or any(stream.hugepages for stream in driver.streams)

    def media_driver() -> list[Check]:
        checks = check_media_driver(probe_media_driver(directory))
        return checks + check_network_drivers([probe_media_driver(path) for path in network_dirs(directory)])

    def shm_driver() -> list[Check]:
        return driver_checks(
            base,
            shm.namespace,
            driver.instance_id,
            aeron_dir=directory,
            control_stream_id=aeron.control_stream_id,
        )

    checks = [first]
    for name, run_group in (
        ("machine", lambda: machine_checks(version)),
        ("memory", lambda: memory_checks(base, wants_hugepages=wants_hugepages)),
        ("directories", lambda: directory_checks(base)),
        ("limits", lambda: limit_checks(wants_mlock=driver.mlock)),
        ("GPU", lambda: [check_gpu(read_gpu_facts())]),
        ("media driver", media_driver),
        ("SHM driver", shm_driver),
    ):
        checks += _guarded(name, run_group)
    return checks


def _configuration(config_file: str | Path | None) -> tuple[Config, Check]:
    name = config_file or os.environ.get(FILE_VARIABLE)
    file = Path(name) if name else None
    tables = (AeronSettings, ShmSettings, DriverSettings)
    try:
        config = Config.load(*tables, file=file)
    except InvalidConfig as error:
        invalid = fail(
            "configuration",
            str(error),
            "No command that reads it starts.",
            "Correct it; the option --check of each role reports the same.",
        )
        return Config.load(*tables, environ={}), invalid
    return config, ok("configuration", str(file) if file else "no file; defaults and the environment")


def _guarded(name: str, run_group: Callable[[], list[Check]]) -> list[Check]:
    """The checks of a group; an error becomes a finding, so that the other groups still run."""
    try:
        return run_group()
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        found = f"{path}{error.strerror or error}"
        return [
            fail(name, found, "This could not be checked.", "Check the permissions, or run as another user.")
        ]
