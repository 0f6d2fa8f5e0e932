"""Where a consumer's frames come from (wire §15.12)."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where a consumer's frames come from at the moment."""

    UNMAPPED = "unmapped"
    """From nowhere yet: no producer was heard, or its regions are gone or were refused."""
    MAPPED = "mapped"
    """From shared memory, whose epoch is the announced one."""
    FALLBACK = "fallback"
    """Another way was named (`consumer.fallback_uri`), by order or because shared memory cannot be used."""
