"""A role as a process: logs, readiness, signals and reloads around one agent.

What every role can be told about how it runs and how it speaks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import InvalidConfig
from . import agent as agents
from .agent import Agent
from .config import Config, DurationNs, parse_duration, setting, settings
from .idle import IdleName, idle_strategy
from .logs import Logging
from .process import Readiness
from .runner import Runner, RunnerCounters


@settings("runtime")
class RuntimeSettings:
    """How a role runs. The same for all roles."""

    instance: str = setting("Tells this one from others of its role, in logs and counters.", default="")
    idle: IdleName = setting(
        "How it waits when there is nothing to do: shorter waits cost processor time.", default="backoff"
    )
    idle_period_ns: DurationNs = setting(
        "The longest wait of `backoff`, and each wait of `sleep`.",
        default=parse_duration("5ms"),
        minimum=1_000,
        maximum=parse_duration("1s"),
    )
    ready_file: Path | None = setting(
        "Written when the role can be used, removed when it stops.", default=None, flag="--ready-file"
    )
    error_log_period_ns: DurationNs = setting(
        "The same error is logged once in this time, with the number of those left out.",
        default=parse_duration("5s"),
    )


@settings("log")
class LogSettings:
    """What is said on stderr."""

    format: Literal["text", "json"] = setting(
        "`text` for people, `json` for machines: one object a line.", default="text", flag="--log-format"
    )
    level: Literal["debug", "info", "warning", "error"] = setting(
        "The least important thing to say.", default="info", flag="--log-level", live=True
    )
    repeats: int = setting(
        "How many lines one statement may write in ten seconds; the rest is counted. 0: all.",
        default=20,
        minimum=0,
    )


_LOG = logging.getLogger(__name__)


def run_role(
    role: str,
    config: Config,
    make_agent: Callable[[], Agent],
    *,
    clock: Clock = SYSTEM_CLOCK,
    counters: RunnerCounters | None = None,
) -> None:
    """Runs the agent until SIGTERM, SIGINT or its own end, as the configuration says.

    Returns after an orderly stop. Raises what the agent could not start with, or RoleFailed: the command
    line turns both into one sentence and exit status 1. SIGHUP reads the configuration again; the agent's
    `on_reload(config)` hears of it if something that may change live has changed.
    """
    runtime, log = config[RuntimeSettings], config[LogSettings]
    logs = Logging(role, runtime.instance, form=log.format, level=log.level, repeats=log.repeats, clock=clock)
    with logs:
        agent = make_agent()

        def on_hangup() -> None:
            reload(config, agent, logs)

        runner = Runner(
            agent,
            idle=idle_strategy(runtime.idle, clock=clock, period_ns=runtime.idle_period_ns),
            clock=clock,
            readiness=Readiness(runtime.ready_file, clock=clock),
            counters=counters,
            on_hangup=on_hangup,
            error_log_period_ns=runtime.error_log_period_ns,
        )
        runner.run()
        _LOG.info("%s has stopped", runner.name)


def reload(config: Config, agent: Agent, logs: Logging) -> None:
    """Reads the configuration again and says what came of it. A bad one changes nothing."""
    try:
        changes = config.reload()
    except InvalidConfig as error:
        for problem in error.problems:
            _LOG.error("the configuration was not reloaded: %s", problem)
        return
    for change in changes:
        if change.live:
            _LOG.info("%s has changed", change.key, extra={"origin": str(config.file or "environment")})
        else:
            _LOG.warning("%s has changed, and takes effect after a restart", change.key)
    if not changes:
        _LOG.info("the configuration was read again: nothing has changed")
    logs.set_level(config[LogSettings].level)
    if any(change.live for change in changes):
        agents.reload(agent, config)
