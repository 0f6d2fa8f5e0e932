"""`tensorpool.open()`: configuration and arguments into a context.

Also `tensorpool.service("recorder")` and `tensorpool.discover()`, which use a shared context: for scripts and
interactive sessions.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, TypeVar, get_args

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
from ..transport import ConnectionOptions, DedicatedStreams, ServiceStreams, StreamIds, default_aeron_dir
from .config import AeronSettings, ContextSettings, ShmSettings
from .context import Context
from .driver_host import Mode
from .endpoints import ContextOptions

_T = TypeVar("_T")
_MIN_TIMEOUT_S: Final = 0.01
_MAX_TIMEOUT_S: Final = 86_400.0
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
CONTEXT_TABLES: Final = (
    ContextSettings,
    AeronSettings,
    ShmSettings,
    ServiceSettings,
    DriverSettings,
    DiscoverySettings,
)
"""The tables of the configuration that `open` reads."""


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
    clock_domain: Literal["monotonic", "realtime_synced"] | None = None,
) -> Context:
    """Connects this process to a media driver and an SHM driver; without running drivers it embeds both.

    `mode="auto"` attaches to the driver that runs for this namespace, or embeds one in this process; when an
    embedded driver of another program ends, this process embeds the next. "driver" only attaches, to a media
    driver too. "embedded" embeds a driver or fails. "standalone" uses no driver: each producer creates and
    announces its own regions, and there are no leases.

    `media_driver="auto"` embeds Aeron's media driver if none runs in `aeron_dir` (Aeron's default for this
    user), and again if that one dies; "external" only connects. Regions are mapped only below
    `allowed_base_dirs` (default: the base directory).

    `clock_domain="realtime_synced"`: announces, activity and frames of this process have the time of day,
    which PTP or NTP keeps equal on all hosts.

    All other values come from the TOML file `config`, its tables `[context]`, `[aeron]`, `[shm]`, `[driver]`,
    `[discovery]` and `[service]`, and from the environment (`TENSORPOOL_AERON__DIR`).
    """
    if mode not in (*get_args(Mode), None):
        raise ConfigError(f"mode {mode!r}: use 'auto', 'driver', 'embedded' or 'standalone'")
    if media_driver not in ("auto", "external", None):
        raise ConfigError(f"media_driver {media_driver!r}: use 'auto' or 'external'")
    if clock_domain not in ("monotonic", "realtime_synced", None):
        raise ConfigError(f"clock_domain {clock_domain!r}: use 'monotonic' or 'realtime_synced'")
    loaded = config if isinstance(config, Config) else load_config(config)
    aeron, shm, service = loaded[AeronSettings], loaded[ShmSettings], loaded[ServiceSettings]
    context: ContextSettings = loaded[ContextSettings]
    base = Path(shm_base_dir or shm.base_dir)
    allowed = shm.allowed_base_dirs if allowed_base_dirs is None else allowed_base_dirs
    if not base.is_dir():
        raise ConfigError(f"shm_base_dir {str(base)!r}: no such directory; create it, or use /dev/shm")
    ids = stream_ids or read_stream_ids(aeron)
    revision, tries_other_revision = LeaseOptions.revisions(context.attach_revision)
    options = ContextOptions(
        mode=mode or context.mode,
        namespace=_check_namespace(namespace or shm.namespace),
        shm_base_dir=base,
        connection=ConnectionOptions(
            aeron_dir=str(aeron_dir or aeron.dir or default_aeron_dir()),
            embed_media_driver=_embeds_media_driver(mode or context.mode, media_driver, aeron.media_driver),
            aeron_dir_mode=aeron.dir_mode,
            media_driver_idle=aeron.idle,
            scheduling=aeron.scheduling,
            allowed_base_dirs=tuple(Path(path) for path in allowed) or (base,),
            stream_ids=ids,
            services=service_streams or service.streams(),
            connect_timeout_s=_seconds("connect_timeout", connect_timeout, aeron.connect_timeout_ns),
            driver_timeout_s=_seconds("driver_timeout", driver_timeout, aeron.driver_timeout_ns),
            announce_period_ns=int(
                _seconds("announce_period", announce_period, aeron.announce_period_ns) * 1e9
            ),
            report_period_ns=context.hello_period_ns,
            network_dir=None if aeron.network_dir is None else str(aeron.network_dir),
            needs_driver=(mode or context.mode) == "driver",
            is_realtime_synced=(clock_domain or aeron.clock_domain) == "realtime_synced",
        ),
        service_token=service.token,
        driver=loaded[DriverSettings],
        discovery=_or_defaults(loaded, DiscoverySettings),
        lease=LeaseOptions(
            keepalive_ns=context.keepalive_ns,
            attach_timeout_ns=context.attach_timeout_ns,
            retry_ns=context.attach_retry_ns,
            revision=revision,
            tries_other_revision=tries_other_revision,
            control_stream_id=ids.control,
        ),
        descriptor_term_bytes=aeron.descriptor_term_bytes,
        per_consumer_streams=PerConsumerStreams(
            channels=context.per_consumer_channels,
            descriptor_ids=context.per_consumer_descriptor_ids,
            control_ids=context.per_consumer_control_ids,
            progress_interval_ns=context.progress_interval_ns,
            progress_bytes=context.progress_step_bytes,
        ),
        reports=ReportOptions(
            latency=context.report_latency, counters=context.aeron_counters, ledgers=context.report_status
        ),
    )
    return Context(options)


def _embeds_media_driver(mode: Mode, given: str | None, configured: str) -> bool:
    """Whether to embed a media driver; by default not in mode "driver".

    Without a running SHM driver such a context could not use the media driver, and services must not depend
    on the media driver of some program.
    """
    return given == "auto" or (given is None and configured == "auto" and mode != "driver")


def load_config(file: str | Path | None) -> Config:
    """The tables that `open` reads, from the file (or `$TENSORPOOL_CONFIG`) and the environment."""
    name = file or os.environ.get(FILE_VARIABLE)
    path = Path(name) if name else None
    return Config.load(*CONTEXT_TABLES, file=path)


def _or_defaults(config: Config, table: type[_T]) -> _T:
    """A table, or its defaults: a program that loads its own configuration may not have loaded it."""
    try:
        return config[table]
    except KeyError:
        return table()


def _seconds(name: str, given: float | None, configured_ns: int) -> float:
    if given is None:
        return configured_ns / 1e9
    if not _MIN_TIMEOUT_S <= given <= _MAX_TIMEOUT_S:
        raise ConfigError(f"{name} {given!r}: use {_MIN_TIMEOUT_S} to {_MAX_TIMEOUT_S:.0f} seconds")
    return given


def _check_namespace(name: str) -> str:
    if not _NAMESPACE.fullmatch(name):
        raise ConfigError(f"namespace {name!r}: use 1 to 64 letters, digits, - _ . and no leading dot")
    return name


def read_stream_ids(aeron: AeronSettings) -> StreamIds:
    """The streams that the configuration names."""
    return StreamIds(
        control=aeron.control_stream_id,
        announce=aeron.announce_stream_id,
        descriptor=aeron.descriptor_stream_id,
        qos=aeron.qos_stream_id,
        metadata=aeron.metadata_stream_id,
        control_channel=aeron.control_channel,
        qos_channel=aeron.qos_channel,
        metadata_channel=aeron.metadata_channel,
        dedicated=tuple(
            DedicatedStreams(
                stream_id=each.stream_id,
                descriptor=each.descriptor_stream_id,
                control=each.control_stream_id,
                qos=each.qos_stream_id,
                metadata=each.metadata_stream_id,
            )
            for each in aeron.streams
        ),
    )


# Contexts of `service` and `discover` by media driver directory; closed at exit.
_shared_contexts: dict[str | None, Context] = {}


def service(
    name: str,
    *,
    instance: str | None = None,
    token: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    aeron_dir: str | None = None,
) -> ServiceClient:
    """A client of a running service, on a context that all such calls share; it is closed at exit."""
    return _shared_context(aeron_dir).service(name, instance=instance, token=token, timeout=timeout)


def _shared_context(aeron_dir: str | None) -> Context:
    context = _shared_contexts.get(aeron_dir)
    if context is None or context.closed:
        # Embeds no driver of either kind: services and streams of other programs need running drivers.
        context = open("standalone", aeron_dir=aeron_dir, media_driver="external")
        _shared_contexts[aeron_dir] = context
    return context


def close_shared_context(aeron_dir: str | None) -> None:
    """Closes the context that `service` and `discover` share for a media driver, before the exit does."""
    if (context := _shared_contexts.pop(aeron_dir, None)) is not None:
        context.close()


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
    """The streams that match all arguments, found with a context that all such calls share.

    See `Context.discover`; `ctx.consumer(name=…)` also opens a consumer.
    """
    return _shared_context(aeron_dir).discover(
        name=name,
        tags=tags,
        stream_id=stream_id,
        producer_id=producer_id,
        data_source_id=data_source_id,
        timeout=timeout,
    )


async def discover_async(**query: Any) -> list[DiscoveredStream]:
    """`discover` for asyncio: waits on a thread, and the event loop stays free."""
    return await asyncio.to_thread(discover, **query)


class _CallableModule(ModuleType):
    __call__ = staticmethod(service)


# `tensorpool.service` is the package of services, and can be called for a client of one.
sys.modules[service_module.__name__].__class__ = _CallableModule
