"""Producers and consumers: frames in, frames out, and the ledger of both."""

from ..attributes.metadata import Metadata
from .consumer import Consumer
from .lease import LeasedProducer, LeaseOptions, wait_attached
from .ledger import ConsumerLedger, Latency, LatencySummary, Outcome, Phase, ProducerLedger
from .metadata import MetadataOptions, SourceDescription
from .options import PerConsumerStreams, ReportOptions
from .owned_regions import StandaloneProducer
from .producer import Producer
from .tracing import TracedLeasedProducer, TracedProducer, TracedStandaloneProducer, TraceIds, Tracer

__all__ = [
    "Consumer",
    "ConsumerLedger",
    "Latency",
    "LatencySummary",
    "LeaseOptions",
    "LeasedProducer",
    "Metadata",
    "MetadataOptions",
    "Outcome",
    "PerConsumerStreams",
    "Phase",
    "Producer",
    "ProducerLedger",
    "ReportOptions",
    "SourceDescription",
    "StandaloneProducer",
    "TraceIds",
    "TracedLeasedProducer",
    "TracedProducer",
    "TracedStandaloneProducer",
    "Tracer",
    "wait_attached",
]
