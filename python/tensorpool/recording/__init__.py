"""Recordings: frames on disk as Arrow segments. Reading and writing them needs no Aeron."""

from .archive import ArchivedRecording, PullResult, PushResult, list_recordings, pull, push
from .batch import NO_TIMESTAMP, NO_TRACE, FrameBatch
from .copy import cut, merge
from .export import export
from .frame import Cursor, PayloadRef, RecordedFrame
from .gaps import Gap, RecordingLedger
from .inspect import info
from .recording import FrameDataset, Recording, open
from .repair import repair
from .retention import ReaderLease, RetentionResult, apply_retention, read_leases
from .selection import Frames, FrameSlice
from .stream_writer import RecoveredSegment
from .verify import verify
from .writer import RecordingWriter, WriterLimits

__all__ = [
    "NO_TIMESTAMP",
    "NO_TRACE",
    "ArchivedRecording",
    "Cursor",
    "FrameBatch",
    "FrameDataset",
    "FrameSlice",
    "Frames",
    "Gap",
    "PayloadRef",
    "PullResult",
    "PushResult",
    "ReaderLease",
    "RecordedFrame",
    "Recording",
    "RecordingLedger",
    "RecordingWriter",
    "RecoveredSegment",
    "RetentionResult",
    "WriterLimits",
    "apply_retention",
    "cut",
    "export",
    "info",
    "list_recordings",
    "merge",
    "open",
    "pull",
    "push",
    "read_leases",
    "repair",
    "verify",
]
