"""Building blocks of a role: agents and their runner, logs, readiness, counters, configuration."""

from .agent import IDLE_NAMES, Agent, AgentFinished, CompositeAgent, IdleName, IdleStrategy, idle_strategy
from .counters import (
    AeronCounterValue,
    Counter,
    CounterFamily,
    CounterPublisher,
    CounterSet,
    CounterValue,
    Gauge,
    counter,
    counters_by,
    gauge,
    read_aeron_counters,
)
from .logs import Logging, RateLimiter
from .role import LogSettings, RuntimeSettings, run_role
from .runner import Readiness, Runner, RunnerCounters

__all__ = [
    "IDLE_NAMES",
    "AeronCounterValue",
    "Agent",
    "AgentFinished",
    "CompositeAgent",
    "Counter",
    "CounterFamily",
    "CounterPublisher",
    "CounterSet",
    "CounterValue",
    "Gauge",
    "IdleName",
    "IdleStrategy",
    "LogSettings",
    "Logging",
    "RateLimiter",
    "Readiness",
    "Runner",
    "RunnerCounters",
    "RuntimeSettings",
    "counter",
    "counters_by",
    "gauge",
    "idle_strategy",
    "read_aeron_counters",
    "run_role",
]
