"""Producers and consumers: frames in, frames out, and the ledger of both."""

from ..attributes.metadata import Metadata
from .consumer import Consumer
from .describing import MetadataTerms
from .description import Description
from .latency import Latency, Spread
from .leased import LeasedProducer, LeaseTerms, wait_attached
from .ledger import ConsumerLedger, Outcome, ProducerLedger
from .phase import Phase
from .producer import Producer
from .reporting import Reports
from .standalone import StandaloneProducer
from .traces import TracedLeasedProducer, TracedProducer, TracedStandaloneProducer, TraceIds, Tracer
from .wishes import OwnStreams

__all__ = [
    "Consumer",
    "ConsumerLedger",
    "Description",
    "Latency",
    "LeaseTerms",
    "LeasedProducer",
    "Metadata",
    "MetadataTerms",
    "Outcome",
    "OwnStreams",
    "Phase",
    "Producer",
    "ProducerLedger",
    "Reports",
    "Spread",
    "StandaloneProducer",
    "TraceIds",
    "TracedLeasedProducer",
    "TracedProducer",
    "TracedStandaloneProducer",
    "Tracer",
    "wait_attached",
]
