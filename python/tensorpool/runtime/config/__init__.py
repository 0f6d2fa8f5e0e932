"""Configuration: TOML, then environment, then flags, into validated settings."""

from .config import Change, Config, check_file
from .sources import Origin, Override
from .spec import ROLES, setting, settings, table
from .units import (
    DurationNs,
    FileMode,
    IdRange,
    Secret,
    SizeBytes,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

__all__ = [
    "ROLES",
    "Change",
    "Config",
    "DurationNs",
    "FileMode",
    "IdRange",
    "Origin",
    "Override",
    "Secret",
    "SizeBytes",
    "check_file",
    "format_duration",
    "format_size",
    "parse_duration",
    "parse_size",
    "setting",
    "settings",
    "table",
]
