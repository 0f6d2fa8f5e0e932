"""Aeron: the media driver, channels, and whole messages for what happens per second."""

from .channels import StreamIds, descriptor_channel
from .media_driver import MediaDriver, default_aeron_dir, embed_lock_path

__all__ = ["MediaDriver", "StreamIds", "default_aeron_dir", "descriptor_channel", "embed_lock_path"]
