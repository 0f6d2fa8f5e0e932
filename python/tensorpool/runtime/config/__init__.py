"""Configuration: validated settings from a TOML file, then the environment, then flags.

Modules that declare settings also need `parse_duration` and `parse_size` for their defaults.
"""

from ...units import duration_literal, parse_duration, parse_size, size_literal
from .config import Change, Config, check_file
from .kinds import DurationNs, FileMode, IdRange, Secret, SizeBytes, StreamRef
from .sources import Origin, Override
from .spec import ROLES, setting, settings, table

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
    "StreamRef",
    "check_file",
    "duration_literal",
    "parse_duration",
    "parse_size",
    "setting",
    "settings",
    "size_literal",
    "table",
]
