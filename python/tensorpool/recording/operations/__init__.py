"""What can be done with a recording as a whole. Each takes a progress callback `(done, total)`."""

from .copying import cut
from .info import RecordingInfo, StreamInfo, info
from .merging import merge
from .repair import Repaired, repair
from .verify import Problem, Verified, verify

__all__ = [
    "Problem",
    "RecordingInfo",
    "Repaired",
    "StreamInfo",
    "Verified",
    "cut",
    "info",
    "merge",
    "repair",
    "verify",
]
