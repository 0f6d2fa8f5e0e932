"""Conductors without a connection, for tests of the native classes."""

from __future__ import annotations

from pathlib import Path

from tensorpool import _native
from tensorpool.transport import ConnectionOptions, ServiceStreams, StreamIds
from tensorpool.transport.media_driver import embed_lock_path


def open_conductor(
    aeron_dir: str,
    *,
    base_dir: str,
    announce: int = 1001,
    announce_period_ns: int = 1_000_000_000,
    driver_timeout_s: float = 10.0,
    lock: str | None = None,
) -> _native.Conductor:
    """A conductor of an external media driver, which may stop and restart.

    `lock`: path of the media driver's lock, for a process that may not enter the state directory.
    """
    options = ConnectionOptions(
        aeron_dir=aeron_dir,
        embed_media_driver=False,
        aeron_dir_mode=0o700,
        allowed_base_dirs=(Path(base_dir),),
        stream_ids=StreamIds(announce=announce),
        services=ServiceStreams(),
        connect_timeout_s=10.0,
        driver_timeout_s=driver_timeout_s,
        announce_period_ns=announce_period_ns,
        report_period_ns=1_000_000_000,
    )
    return _native.Conductor(
        options, announce_channel="aeron:ipc", media_driver_lock=lock or embed_lock_path(aeron_dir)
    )
