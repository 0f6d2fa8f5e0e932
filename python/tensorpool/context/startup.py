"""`tensorpool.open()`: from configuration and arguments to a context.

`tensorpool.service("recorder")` and `tensorpool.discover()` without a context: for scripts and prompts.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar, get_args

from .. import service as service_module
from ..client import LeaseOptions, PerConsumerStreams, ReportOptions
from ..discovery import DiscoveredStream, DiscoverySettings
from ..driver import DriverSettings
from ..errors import ConfigError
from ..runtime.config import Config
from ..runtime.config.sources import FILE_VARIABLE
from ..service import ServiceClient
from ..service.client import DEFAULT_TIMEOUT_S
from ..service.config import ServiceSettings
from ..transport import StreamIds, default_aeron_dir
from ..transport.channels import ServiceStreams
from .config import AeronSettings, ContextSettings, ShmSettings
from .context import Context
from .driver_host import Mode

_T = TypeVar("_T")
_SHORTEST_S, _LONGEST_S = 0.01, 86_400.0
_NAMESPACE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


def open(
    mode: Mode | None = None,
    *,
    aeron_dir: str | Path | None = None,
    config: str | Path | Config | None = None,
    media_driver: Literal["auto", "external"] | None = None,
    namespace: str | None = None,
    shm_base_dir: str | Path | None = None,
    allowed_base_dirs: Sequence[str | Path] | None = None,
    stream_ids: StreamIds | None = None,
    service_streams: ServiceStreams | None = None,
    connect_timeout: float | None = None,
    driver_timeout: float | None = None,
    announce_period: float | None = None,
) -> Context:
    """Connects this process; with nothing running, everything needed is embedded.

    `mode="auto"` attaches to the driver that runs for this namespace, else embeds one here, and takes over
    from another program's embedded one when that ends. "driver" only ever attaches, to a media driver
    too; "embedded" has its own or fails; "standalone" does without: each producer owns and announces its
    memory, and nobody needs a lease.

    `media_driver="auto"` embeds Aeron's media driver if none runs in `aeron_dir` (Aeron's default for this
    user), and does so again if it dies; "external" only ever attaches. Regions are mapped below
    `allowed_base_dirs` (the base dir, if not given) and nowhere else. What is not given comes from the TOML
    file `config`, its tables `[context]`, `[aeron]`, `[shm]`, `[driver]`, `[discovery]` and `[service]`, and
    from the environment (`TENSORPOOL_AERON__DIR`).
    """
    if mode not in (*get_args(Mode), None):
        raise ConfigError(f"mode {mode!r}: use 'auto', 'driver', 'embedded' or 'standalone'")
    if media_driver not in ("auto", "external", None):
        raise ConfigError(f"media_driver {media_driver!r}: use 'auto' or 'external'")
    loaded = config if isinstance(config, Config) else load_config(config)
    aeron, shm, service = loaded[AeronSettings], loaded[ShmSettings], loaded[ServiceSettings]
    chosen: ContextSettings = loaded[ContextSettings]
    base = Path(shm_base_dir or shm.base_dir)
    allowed = shm.allowed_base_dirs if allowed_base_dirs is None else allowed_base_dirs
    if not base.is_dir():
        raise ConfigError(f"shm_base_dir {str(base)!r}: no such directory; make it, or use /dev/shm")
    ids = stream_ids or _stream_ids(aeron)
    period = _seconds("announce_period", announce_period, aeron.announce_period_ns)
    return Context(
        mode=mode or chosen.mode,
        aeron_dir=str(aeron_dir or aeron.dir or default_aeron_dir()),
        embed=_embeds_media_driver(mode or chosen.mode, media_driver, aeron.media_driver),
        aeron_dir_mode=aeron.dir_mode,
        namespace=_checked_namespace(namespace or shm.namespace),
        shm_base_dir=base,
        allowed_base_dirs=[Path(path) for path in allowed] or [base],
        stream_ids=ids,
        service_streams=service_streams or service.streams(),
        service_token=service.token,
        driver_settings=loaded[DriverSettings],
        discovery=_or_defaults(loaded, DiscoverySettings),
        terms=LeaseOptions(
            keepalive_ns=chosen.keepalive_ns,
            announce_period_ns=int(period * 1e9),
            attach_timeout_ns=chosen.attach_timeout_ns,
            retry_ns=chosen.attach_retry_ns,
            revision=chosen.attach_revision,
            control_stream_id=ids.control,
        ),
        descriptor_term_bytes=aeron.descriptor_term_bytes,
        streams=PerConsumerStreams(
            channels=chosen.own_channels,
            descriptor_ids=(chosen.own_descriptor_first, chosen.own_descriptor_last),
            control_ids=(chosen.own_control_first, chosen.own_control_last),
            period_ns=chosen.hello_period_ns,
            progress_interval_ns=chosen.progress_interval_ns,
            progress_bytes=chosen.progress_step_bytes,
        ),
        reports=ReportOptions(
            latency=chosen.tell_latency, counters=chosen.aeron_counters, accounts=chosen.tell_accounts
        ),
        connect_timeout=_seconds("connect_timeout", connect_timeout, aeron.connect_timeout_ns),
        driver_timeout=_seconds("driver_timeout", driver_timeout, aeron.driver_timeout_ns),
        announce_period=period,
    )


def _embeds_media_driver(mode: Mode, given: str | None, configured: str) -> bool:
    """Who only ever attaches to a driver has no use for a media driver without one, and a service must not
    come to depend on some program's."""
    return given == "auto" or (given is None and configured == "auto" and mode != "driver")


def load_config(file: str | Path | None) -> Config:
    """The tables that a connection reads: from the file, or `$TENSORPOOL_CONFIG`, and the environment."""
    named = file or os.environ.get(FILE_VARIABLE)
    path = Path(named) if named else None
    tables = (ContextSettings, AeronSettings, ShmSettings, ServiceSettings, DriverSettings, DiscoverySettings)
    return Config.load(*tables, file=path)


def _or_defaults(config: Config, table: type[_T]) -> _T:
    """A table that a program which loads its own configuration may have left out."""
    try:
        return config[table]
    except KeyError:
        return table()


def _seconds(name: str, given: float | None, configured_ns: int) -> float:
    if given is None:
        return configured_ns / 1e9
    if not _SHORTEST_S <= given <= _LONGEST_S:
        raise ConfigError(f"{name} {given!r}: use {_SHORTEST_S} to {_LONGEST_S:.0f} seconds")
    return given


def _checked_namespace(name: str) -> str:
    if not _NAMESPACE.fullmatch(name):
        raise ConfigError(f"namespace {name!r}: use 1 to 64 of letters, digits, - _ . and no leading dot")
    return name


def _stream_ids(aeron: AeronSettings) -> StreamIds:
    return StreamIds(
        control=aeron.control_stream_id,
        announce=aeron.announce_stream_id,
        descriptor=aeron.descriptor_stream_id,
        qos=aeron.qos_stream_id,
        metadata=aeron.metadata_stream_id,
    )


_shared: dict[str | None, Context] = {}


def service(
    name: str,
    *,
    instance: str | None = None,
    token: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    aeron_dir: str | None = None,
) -> ServiceClient:
    """A client of a running service, on a context that is shared by all such calls and closed at the end."""
    return _context(aeron_dir).service(name, instance=instance, token=token, timeout=timeout)


def _context(aeron_dir: str | None) -> Context:
    context = _shared.get(aeron_dir)
    if context is None or context.closed:
        # Never embeds a driver of either kind: what is asked for runs already, or is not there.
        context = _shared[aeron_dir] = open("standalone", aeron_dir=aeron_dir, media_driver="external")
    return context


def discover(
    *,
    name: str | None = None,
    tags: Sequence[str] = (),
    stream_id: int | None = None,
    producer_id: int | None = None,
    data_source_id: int | None = None,
    timeout: float | None = None,
    aeron_dir: str | None = None,
) -> list[DiscoveredStream]:
    """The streams that fit all that is given, on a context that is shared by all such calls.

    See `Context.discover`; `ctx.consumer(name=…)` goes all the way to the frames.
    """
    return _context(aeron_dir).discover(
        name=name,
        tags=tags,
        stream_id=stream_id,
        producer_id=producer_id,
        data_source_id=data_source_id,
        timeout=timeout,
    )


async def discover_async(**wanted: Any) -> list[DiscoveredStream]:
    """`discover` for asyncio: the waiting is done on a thread, the loop stays free."""
    return await asyncio.to_thread(discover, **wanted)


class _CallableModule(ModuleType):
    __call__ = staticmethod(service)


# `tensorpool.service` is the package of the control plane and, called, the way to a client.
sys.modules[service_module.__name__].__class__ = _CallableModule
