"""Replay: recorded tensors back into pools, with the spacing, the words and the traces they had."""

from .options import Speed, TimeBase
from .replay import Replay, replay
from .stats import ReplayStats, StreamStats

__all__ = ["Replay", "ReplayStats", "Speed", "StreamStats", "TimeBase", "replay"]
