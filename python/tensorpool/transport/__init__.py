"""Aeron: the connection to a media driver, an embedded media driver, channels and stream ids."""

from .channels import (
    SHARED_CHANNEL,
    DedicatedStreams,
    ServiceStreams,
    StreamAddress,
    StreamIds,
    descriptor_channel,
)
from .connection import Connection, ConnectionOptions, Scheduling
from .media_driver import MediaDriver, default_aeron_dir, embed_lock_path

__all__ = [
    "SHARED_CHANNEL",
    "Connection",
    "ConnectionOptions",
    "DedicatedStreams",
    "MediaDriver",
    "Scheduling",
    "ServiceStreams",
    "StreamAddress",
    "StreamIds",
    "default_aeron_dir",
    "descriptor_channel",
    "embed_lock_path",
]
