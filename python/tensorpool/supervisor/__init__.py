"""Seeing and steering a running system: the picture, policy, and who carries it out (wire §10.5)."""

from .bounds import Bounds
from .picture import Picture
from .views import (
    BridgeView,
    CollisionView,
    ConsumerView,
    DriverView,
    LatencyView,
    LeaseView,
    LedgerView,
    MappingView,
    MismatchView,
    NoticeView,
    PoolView,
    ProducerView,
    RecordedView,
    RecorderView,
    ServiceView,
    Snapshot,
    StreamState,
    StreamView,
    as_json,
)

__all__ = [
    "Bounds",
    "BridgeView",
    "CollisionView",
    "ConsumerView",
    "DriverView",
    "LatencyView",
    "LeaseView",
    "LedgerView",
    "MappingView",
    "MismatchView",
    "NoticeView",
    "Picture",
    "PoolView",
    "ProducerView",
    "RecordedView",
    "RecorderView",
    "ServiceView",
    "Snapshot",
    "StreamState",
    "StreamView",
    "as_json",
]
