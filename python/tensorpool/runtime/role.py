"""A role as a process: its common settings, and `run_role` with logs, readiness, signals and reloads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import InvalidConfig
from ..transport.connection import Scheduling, is_real_time, priority_fault
from . import agent as agents
from .agent import Agent, IdleName, idle_strategy
from .config import Config, DurationNs, parse_duration, setting, settings
from .logs import Logging
from .runner import Readiness, Runner, RunnerCounters


@settings("runtime")
class RuntimeSettings:
    """How a role runs. All roles have these settings."""

    instance: str = setting(
        "Name of this instance in logs and counters: distinguishes several processes of a role.", default=""
    )
    idle: IdleName = setting(
        "Idle strategy: how the role waits after a duty cycle without work. Shorter waits use more processor "
        "time.",
        default="backoff",
    )
    idle_period_ns: DurationNs = setting(
        "Longest wait of `backoff`, which it reaches after a second without work, and every wait of `sleep`.",
        default=parse_duration("20ms"),
        minimum=1_000,
        maximum=parse_duration("1s"),
    )
    cpu_affinity: tuple[int, ...] = setting(
        "Cores of all threads of the role. Empty: any. `aeron.cpu_affinity` has those of its connection.",
        default=(),
    )
    priority: str = setting(
        "Priority of all threads of the role, as `aeron.priority` has it for those of its connection.",
        default="normal",
        check=priority_fault,
    )
    ready_file: Path | None = setting(
        "File that is created when the role is ready and removed when it stops.",
        default=None,
        flag="--ready-file",
    )
    error_log_period_ns: DurationNs = setting(
        "Period in which the same error is logged once, with the number of suppressed repeats.",
        default=parse_duration("5s"),
    )

    def check(self) -> Iterator[tuple[str, str]]:
        """Faults of settings that are valid by themselves, as (setting, fault)."""
        if is_real_time(self.priority) and self.idle in ("busy-spin", "yield"):
            yield "priority", f"a role that never sleeps (idle = {self.idle!r}) would stop its core"


@settings("log")
class LogSettings:
    """Logs on stderr."""

    format: Literal["text", "json"] = setting(
        "`text` for people; `json` for programs, one object per line.", default="text", flag="--log-format"
    )
    level: Literal["debug", "info", "warning", "error"] = setting(
        "Lowest level that is logged.", default="info", flag="--log-level", live=True
    )
    repeats: int = setting(
        "Lines that one statement may write in ten seconds; further lines are counted. 0: no limit.",
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
    """Runs the agent until SIGTERM, SIGINT or AgentFinished, with the settings of the configuration.

    Returns after an orderly stop. Raises RoleFailed, or the error of the agent's start: the command line
    prints both as one sentence, with exit status 1. SIGHUP reloads the configuration; the agent's
    `on_reload(config)` is called if a live setting has changed.
    """
    runtime, log = config[RuntimeSettings], config[LogSettings]
    logs = Logging(role, runtime.instance, form=log.format, level=log.level, repeats=log.repeats, clock=clock)
    with logs:
        # Before any thread starts: all inherit it.
        Scheduling(runtime.cpu_affinity, runtime.priority).apply()
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
    """Reloads the configuration and logs every change. An invalid configuration changes nothing."""
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
        _LOG.info("the configuration was reloaded: no setting has changed")
    logs.set_level(config[LogSettings].level)
    if any(change.live for change in changes):
        agents.reload(agent, config)
