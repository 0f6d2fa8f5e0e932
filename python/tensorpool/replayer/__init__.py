"""The replayer: publishes recorded frames again, with their spacing, metadata and traces."""

from .options import Speed, TimeBase
from .replay import Replay, replay
from .stats import ReplayStats, StreamStats

__all__ = ["Replay", "ReplayStats", "Speed", "StreamStats", "TimeBase", "replay"]
