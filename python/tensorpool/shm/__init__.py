"""Shared memory as its owner sees it: sizes, directories, epochs, and what dead owners left behind."""

from .epoch_files import EpochFiles, create_epoch, remove_leftovers
from .ownership import EpochMark
from .sizes import parse_pools, parse_size

__all__ = [
    "EpochFiles",
    "EpochMark",
    "create_epoch",
    "parse_pools",
    "parse_size",
    "remove_leftovers",
]
