"""Producers and consumers of streams, their options, ledgers and metadata."""

from ..attributes.metadata import Metadata
from ..shm.ownership import OwnedRegions
from .consumer import Consumer
from .frame_loops import FrameBatches, WholeFrame, WholeFrames
from .join import Join, JoinInputLedger, JoinKeywords, JoinLedger, JoinOptions, plan_join
from .lease import LeaseOptions, wait_attached
from .ledger import ConsumerLedger, Latency, LatencySummary, Outcome, Phase, ProducerLedger
from .merge_map import MergeMap, MergeMapAnnouncer, MergeMapJoin
from .metadata import MetadataOptions, ProducerMetadata, SourceDescription
from .options import (
    ConsumerKeywords,
    ConsumerOptions,
    PerConsumerStreams,
    ProducerKeywords,
    ProducerOptions,
    ReportOptions,
)
from .producer import Producer
from .tracing import TraceIds, Tracer

__all__ = [
    "Consumer",
    "ConsumerKeywords",
    "ConsumerLedger",
    "ConsumerOptions",
    "FrameBatches",
    "Join",
    "JoinInputLedger",
    "JoinKeywords",
    "JoinLedger",
    "JoinOptions",
    "Latency",
    "LatencySummary",
    "LeaseOptions",
    "MergeMap",
    "MergeMapAnnouncer",
    "MergeMapJoin",
    "Metadata",
    "MetadataOptions",
    "Outcome",
    "OwnedRegions",
    "PerConsumerStreams",
    "Phase",
    "Producer",
    "ProducerKeywords",
    "ProducerLedger",
    "ProducerMetadata",
    "ProducerOptions",
    "ReportOptions",
    "SourceDescription",
    "TraceIds",
    "Tracer",
    "WholeFrame",
    "WholeFrames",
    "plan_join",
    "wait_attached",
]
