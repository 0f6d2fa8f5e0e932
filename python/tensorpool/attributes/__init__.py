"""Attributes of a data source by metadata version, live and recorded (wire §10.3.2)."""

from __future__ import annotations

from .extension_types import Extension
from .metadata import Metadata, describe

__all__ = ["Extension", "Metadata", "describe"]
