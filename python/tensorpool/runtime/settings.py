"""What every role can be told about how it runs and how it speaks."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from .config import DurationNs, parse_duration, setting, settings
from .idle import IdleName


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
