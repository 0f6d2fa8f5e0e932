"""Producers and consumers: frames in, frames out, and the ledger of both."""

from .consumer import Consumer
from .ledger import ConsumerLedger, Outcome, ProducerLedger
from .producer import Producer
from .standalone import StandaloneProducer
from .traces import TracedProducer, TraceIds, Tracer

__all__ = [
    "Consumer",
    "ConsumerLedger",
    "Outcome",
    "Producer",
    "ProducerLedger",
    "StandaloneProducer",
    "TraceIds",
    "TracedProducer",
    "Tracer",
]
