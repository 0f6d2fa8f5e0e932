"""Producers and consumers: frames in, frames out, and the ledger of both."""

from .consumer import Consumer
from .leased import LeasedProducer, LeaseTerms, wait_attached
from .ledger import ConsumerLedger, Outcome, ProducerLedger
from .producer import Producer
from .standalone import StandaloneProducer
from .traces import TracedLeasedProducer, TracedProducer, TracedStandaloneProducer, TraceIds, Tracer

__all__ = [
    "Consumer",
    "ConsumerLedger",
    "LeaseTerms",
    "LeasedProducer",
    "Outcome",
    "Producer",
    "ProducerLedger",
    "StandaloneProducer",
    "TraceIds",
    "TracedLeasedProducer",
    "TracedProducer",
    "TracedStandaloneProducer",
    "Tracer",
    "wait_attached",
]
