"""Producers and consumers of streams, their options, ledgers and metadata."""

from ..attributes.metadata import Metadata
from .consumer import Consumer
from .lease import LeaseOptions, wait_attached
from .ledger import ConsumerLedger, Latency, LatencySummary, Outcome, Phase, ProducerLedger
from .metadata import MetadataOptions, ProducerMetadata, SourceDescription
from .options import (
    ConsumerKeywords,
    ConsumerOptions,
    PerConsumerStreams,
    ProducerKeywords,
    ProducerOptions,
    ReportOptions,
)
from .owned_regions import OwnedRegions
from .producer import Producer
from .tracing import TraceIds, Tracer
from .whole import WholeFrame, WholeFrames

__all__ = [
    "Consumer",
    "ConsumerKeywords",
    "ConsumerLedger",
    "ConsumerOptions",
    "Latency",
    "LatencySummary",
    "LeaseOptions",
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
    "wait_attached",
]
