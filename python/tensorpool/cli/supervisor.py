"""`tensorpool supervisor`: watch a running system and steer its consumers, by rules or by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import click

from .. import context
from ..context.config import AeronSettings, ContextSettings, ShmSettings
from ..driver import DriverSettings
from ..errors import NoSuchService
from ..metrics import MetricsExporter, MetricsSettings
from ..monitor.listener import reduced_gc
from ..runtime.config import Config
from ..runtime.role import RuntimeSettings, run_role
from ..service import ServiceClient
from ..service.config import ServiceSettings
from ..supervisor.agent import SupervisorAgent
from ..supervisor.config import SupervisorSettings
from .options import ConnectOptions, connect_options, role_options
from .output import columns, console, format_duration, key_values
from .params import DefaultRunGroup, StreamId

_EPILOG = """
\b
Examples:
  tensorpool supervisor --config FILE         run it, with rules
  tensorpool supervisor status                what it sees, which rules act
  tensorpool supervisor limit 20000 271828 --hz 5
  tensorpool supervisor release 20000 271828
  tensorpool service watch supervisor         every decision, with its reason
"""

_RUN = """
\b
Examples:
  tensorpool supervisor run --config supervisor.toml
  tensorpool supervisor run --config supervisor.toml --check
  tensorpool supervisor run --metrics 9464
"""


@click.group(cls=DefaultRunGroup, epilog=_EPILOG)
def supervisor() -> None:
    """See a running system, and steer its consumers by rules or by hand.

    Without a verb it runs. It holds no lease and stores nothing: it may be started and ended at any time.
    """


@supervisor.command(epilog=_RUN)
@role_options(
    ContextSettings,
    AeronSettings,
    ShmSettings,
    ServiceSettings,
    DriverSettings,
    SupervisorSettings,
    MetricsSettings,
)
def run(config: Config) -> None:
    """Run the supervisor here until SIGTERM or Ctrl-C.

    Rules are in `[[supervisor.rules]]` of the configuration; SIGHUP reads them again. Every decision is on
    the services' status stream, with its reason.
    """
    with (
        reduced_gc(),
        context.open(mode="standalone", config=config) as ctx,
        ExitStack() as stack,
    ):

        def make_agent() -> SupervisorAgent:
            agent = SupervisorAgent(
                ctx,
                settings=config[SupervisorSettings],
                token=config[ServiceSettings].token,
                instance=config[RuntimeSettings].instance,
            )
            # Here, where there is a log already: it says where they are.
            stack.enter_context(MetricsExporter(config[MetricsSettings], lambda: agent.latest))
            return agent

        run_role("supervisor", config, make_agent)


_instance = click.option("--instance", help="The supervisor's instance, where it has one.")


@contextmanager
def _client(to: ConnectOptions, instance: str | None) -> Iterator[ServiceClient]:
    try:
        with to.client(f"supervisor:{instance}" if instance else "supervisor") as client:
            yield client
    except NoSuchService:
        raise NoSuchService(
            "no supervisor answers on this media driver: start one with tensorpool supervisor"
        ) from None


@supervisor.command(
    epilog="\b\nExamples:\n  tensorpool supervisor status\n  tensorpool supervisor status --json\n"
)
@_instance
@connect_options
def status(to: ConnectOptions, instance: str | None) -> None:
    """What it sees, which rules act on whom, and what it decided last."""
    with _client(to, instance) as client:
        found: dict[str, Any] = client.call("status")
        found["decisions"] = client.call("decisions")
        found["system"] = _all_streams(client)
    if to.as_json:
        click.echo(json.dumps(found, indent=2))
        return
    screen = console()
    screen.print(
        key_values(
            [
                ("supervisor", f"process {found['pid']} of {found['user']}"),
                ("up for", format_duration(found["uptime_s"])),
                ("streams", found["streams"]),
                ("consumers", found["consumers"]),
                ("recorders, bridges", f"{found['recorders']}, {found['bridges']}"),
                ("id collisions", found["collisions"]),
                ("ledger", _ledger(found["ledger"])),
                ("rules", ", ".join(found["rules"]) or "none"),
                ("active", ", ".join(_target(one) for one in found["active"]) or "none"),
                ("by hand", ", ".join(_target(one) for one in found["manual"]) or "none"),
            ]
        )
    )
    screen.print()
    table = columns(
        "stream", "name", "state", "consumer", "mode", "Hz", "lost", "behind", right=("Hz", "lost")
    )
    for stream in found["system"]:
        for one in stream["consumers"] or [None]:
            table.add_row(str(stream["stream_id"]), stream["name"], stream["state"], *_consumer(one))
    screen.print(table)
    for one in found["decisions"][-10:]:
        screen.print(f"{one['action']} {_target(one)} by {one['by']}: {one['reason']}")


def _all_streams(client: ServiceClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while part := client.call("streams", first=rows[-1]["stream_id"] + 1 if rows else 0):
        rows += part
    return rows


def _ledger(found: dict[str, Any] | None) -> str:
    """As a whole: `tensorpool ledger` has its rows."""
    if found is None:
        return "not kept"
    return ", ".join(f"{n} {verdict}" for verdict, n in found["paths"].items() if n) or "nobody tells"


def _consumer(one: dict[str, Any] | None) -> list[str]:
    if one is None:
        return ["", "", "", "", ""]
    lost = sum(n for reason, n in one["dropped"].items() if reason not in ("rate_limited", "skipped"))
    rate = "" if one["rate_hz"] is None else f"{one['rate_hz']:,.1f}"
    behind = "" if one["backlog"] is None else str(one["backlog"])
    return [str(one["consumer_id"]), one["mode"], rate, str(lost), behind]


def _target(one: dict[str, Any]) -> str:
    rule = f"{one['rule']}: " if "rule" in one else ""
    return f"{rule}{one['stream_id']}" + ("" if one["consumer_id"] is None else f"/{one['consumer_id']}")


@supervisor.command(epilog="\b\nExamples:\n  tensorpool supervisor limit 20000 271828 --hz 5\n")
@click.argument("stream_id", type=StreamId())
@click.argument("consumer_id", type=click.IntRange(1))
@click.option("--hz", required=True, type=click.IntRange(1), help="At most so many frames a second.")
@click.option("--reason", default="", help="Goes with the decision.")
@_instance
@connect_options
def limit(
    to: ConnectOptions, stream_id: int, consumer_id: int, hz: int, reason: str, instance: str | None
) -> None:
    """Give a consumer at most so many frames a second, until it is released or leaves."""
    _order(to, instance, "limit", stream_id, consumer_id, reason, max_rate_hz=hz)


@supervisor.command(epilog="\b\nExamples:\n  tensorpool supervisor redirect 20000 271828 'bridge://1?…'\n")
@click.argument("stream_id", type=StreamId())
@click.argument("consumer_id", type=click.IntRange(1))
@click.argument("uri")
@click.option("--reason", default="", help="Goes with the decision.")
@_instance
@connect_options
def redirect(
    to: ConnectOptions, stream_id: int, consumer_id: int, uri: str, reason: str, instance: str | None
) -> None:
    """Send a consumer to another way than shared memory, until it is released or leaves."""
    _order(to, instance, "redirect", stream_id, consumer_id, reason, uri=uri)


@supervisor.command(epilog="\b\nExamples:\n  tensorpool supervisor release 20000 271828\n")
@click.argument("stream_id", type=StreamId())
@click.argument("consumer_id", type=click.IntRange(1))
@click.option("--reason", default="", help="Goes with the decision.")
@_instance
@connect_options
def release(to: ConnectOptions, stream_id: int, consumer_id: int, reason: str, instance: str | None) -> None:
    """Undo what was ordered for a consumer, by hand or by a rule."""
    _order(to, instance, "release", stream_id, consumer_id, reason)


def _order(
    to: ConnectOptions,
    instance: str | None,
    action: str,
    stream_id: int,
    consumer_id: int,
    reason: str,
    **more: Any,
) -> None:
    with _client(to, instance) as client:
        found = client.call(action, stream_id=stream_id, consumer_id=consumer_id, reason=reason, **more)
    if to.as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        console(err=True).print(f"{action}: stream {stream_id}, consumer {consumer_id}")
