"""Recordings: tensors on disk as Arrow segments, without Aeron."""

from .batch import NO_TIMESTAMP, NO_TRACE, FrameBatch
from .dataset import FrameDataset
from .exports import export
from .frame import Cursor, PayloadRef, RecordedFrame
from .gaps import Gap, RecordingLedger
from .leases import ReaderLease, read_leases
from .operations import cut, info, merge, repair, verify
from .recording import Recording, open
from .recover import Recovered
from .retention import Retained, retain
from .selection import Frames
from .writer import RecordingWriter, WriterLimits

__all__ = [
    "NO_TIMESTAMP",
    "NO_TRACE",
    "Cursor",
    "FrameBatch",
    "FrameDataset",
    "Frames",
    "Gap",
    "PayloadRef",
    "ReaderLease",
    "RecordedFrame",
    "Recording",
    "RecordingLedger",
    "RecordingWriter",
    "Recovered",
    "Retained",
    "WriterLimits",
    "cut",
    "export",
    "info",
    "merge",
    "open",
    "read_leases",
    "repair",
    "retain",
    "verify",
]
