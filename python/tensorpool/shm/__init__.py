"""Shared memory from its owner's side: payload pools, epoch files, ownership, removal of leftovers."""

from .epoch_files import EpochFiles, EpochSpec, PoolSpec, create_epoch, remove_leftovers
from .ownership import EpochMark, parse_pools

__all__ = [
    "EpochFiles",
    "EpochMark",
    "EpochSpec",
    "PoolSpec",
    "create_epoch",
    "parse_pools",
    "remove_leftovers",
]
