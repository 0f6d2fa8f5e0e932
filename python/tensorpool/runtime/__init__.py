"""What a role stands on: agents and their runner, logs, readiness, counters, configuration."""

from .aeron_counters import AeronExposure, AeronReading, read_aeron_counters
from .agent import Agent, AgentFinished, CompositeAgent
from .counters import Counter, CounterFamily, CounterSet, Gauge, Reading, counter, counters_by, gauge
from .idle import IDLE_NAMES, IdleName, IdleStrategy, idle_strategy
from .logs import Logging, RateLimiter
from .ready import Readiness
from .role import run_role
from .runner import Runner, RunnerCounters
from .settings import LogSettings, RuntimeSettings

__all__ = [
    "IDLE_NAMES",
    "AeronExposure",
    "AeronReading",
    "Agent",
    "AgentFinished",
    "CompositeAgent",
    "Counter",
    "CounterFamily",
    "CounterSet",
    "Gauge",
    "IdleName",
    "IdleStrategy",
    "LogSettings",
    "Logging",
    "RateLimiter",
    "Readiness",
    "Reading",
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
