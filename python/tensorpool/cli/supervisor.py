"""`tensorpool supervisor`: monitor a running system and control its consumers, by rules or by hand."""

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
from ..metrics.config import MetricsSettings
from ..monitor.listener import reduced_gc
from ..runtime.config import Config
from ..runtime.role import RuntimeSettings, run_role
from ..service import ServiceClient
from ..service.config import ServiceSettings
from ..supervisor.agent import ActiveRule, SupervisorAgent, SupervisorLedger, SupervisorStatus
from ..supervisor.config import SupervisorSettings
from ..supervisor.service import DecisionReply, SupervisedConsumer, SupervisedStream
from .options import ConnectOptions, connect_options, role_options
from .output import columns, console, format_duration, key_values
from .params import DefaultRunGroup, StreamId

_EPILOG = """
\b
Examples:
  tensorpool supervisor --config FILE         run it, with rules
  tensorpool supervisor status                the system, and the active rules
  tensorpool supervisor limit 20000 271828 --hz 5
  tensorpool supervisor release 20000 271828
  tensorpool service watch supervisor         every decision, with its reason
"""

_RUN_EPILOG = """
\b
Examples:
  tensorpool supervisor run --config supervisor.toml
  tensorpool supervisor run --config supervisor.toml --check
  tensorpool supervisor run --metrics 9464
"""


@click.group(cls=DefaultRunGroup, epilog=_EPILOG)
def supervisor() -> None:
    """Monitor a running system, and control its consumers by rules or by hand.

    Without a verb it runs. It holds no lease and stores nothing: it may be started and ended at any time.
    """


@supervisor.command(epilog=_RUN_EPILOG)
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

    Rules are in `[[supervisor.rules]]` of the configuration; SIGHUP reloads them. It publishes every decision
    on the services' status stream, with its reason.
    """
    from ..metrics.agent import MetricsExporter

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
            # After the log is configured: the exporter logs its address.
            stack.enter_context(MetricsExporter(config[MetricsSettings], lambda: agent.latest))
            return agent

        run_role("supervisor", config, make_agent)


_instance = click.option("--instance", help="The instance of the supervisor, if it has one.")


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
    """Show the system, the active rules and the latest decisions."""
    with _client(to, instance) as client:
        reply: SupervisorStatus = client.call("status")
        decisions: list[DecisionReply] = client.call("decisions")
        streams = _all_streams(client)
    if to.json_output:
        click.echo(json.dumps({**reply, "decisions": decisions, "system": streams}, indent=2))
        return
    screen = console()
    screen.print(
        key_values(
            [
                ("supervisor", f"process {reply['pid']} of {reply['user']}"),
                ("up for", format_duration(reply["uptime_s"])),
                ("streams", reply["streams"]),
                ("consumers", reply["consumers"]),
                ("recorders, bridges", f"{reply['recorders']}, {reply['bridges']}"),
                ("id collisions", reply["collisions"]),
                ("ledger", _ledger_text(reply["ledger"])),
                ("rules", ", ".join(reply["rules"]) or "none"),
                ("active", ", ".join(_rule_text(active) for active in reply["active"]) or "none"),
                ("by hand", ", ".join(_target_text(**order) for order in reply["manual"]) or "none"),
            ]
        )
    )
    screen.print()
    table = columns(
        "stream", "name", "state", "consumer", "mode", "Hz", "lost", "behind", right=("Hz", "lost")
    )
    for stream in streams:
        for cells in [_consumer_cells(consumer) for consumer in stream["consumers"]] or [_NO_CONSUMER]:
            table.add_row(str(stream["stream_id"]), stream["name"], stream["state"], *cells)
    screen.print(table)
    for decision in decisions[-10:]:
        target = _target_text(decision["stream_id"], decision["consumer_id"])
        screen.print(f"{decision['action']} {target} by {decision['by']}: {decision['reason']}")


def _all_streams(client: ServiceClient) -> list[SupervisedStream]:
    """All streams, asked for in parts: a reply has a maximum size."""
    streams: list[SupervisedStream] = []
    while part := client.call("streams", first=streams[-1]["stream_id"] + 1 if streams else 0):
        streams += part
    return streams


def _ledger_text(ledger: SupervisorLedger | None) -> str:
    """Paths by verdict; `tensorpool ledger` has the rows."""
    if ledger is None:
        return "not kept"
    return ", ".join(f"{n} {verdict}" for verdict, n in ledger["paths"].items() if n) or "no reports"


_NO_CONSUMER = [""] * 5


def _consumer_cells(consumer: SupervisedConsumer) -> list[str]:
    lost = sum(n for reason, n in consumer["dropped"].items() if reason not in ("rate_limited", "skipped"))
    rate = "" if consumer["rate_hz"] is None else f"{consumer['rate_hz']:,.1f}"
    behind = "" if consumer["backlog"] is None else str(consumer["backlog"])
    # An older supervisor reports no labels.
    who = f"{consumer.get('label') or ''} {consumer['consumer_id']}".strip()
    return [who, consumer["mode"], rate, str(lost), behind]


def _rule_text(active: ActiveRule) -> str:
    return f"{active['rule']}: {_target_text(active['stream_id'], active['consumer_id'])}"


def _target_text(stream_id: int, consumer_id: int | None) -> str:
    return f"{stream_id}" if consumer_id is None else f"{stream_id}/{consumer_id}"


@supervisor.command(epilog="\b\nExamples:\n  tensorpool supervisor limit 20000 271828 --hz 5\n")
@click.argument("stream_id", type=StreamId())
@click.argument("consumer_id", type=click.IntRange(1))
@click.option("--hz", required=True, type=click.IntRange(1), help="Frames a second, at most.")
@click.option("--reason", default="", help="The reason, which the decision records.")
@_instance
@connect_options
def limit(
    to: ConnectOptions, stream_id: int, consumer_id: int, hz: int, reason: str, instance: str | None
) -> None:
    """Limit the rate of a consumer, until it is released or closes."""
    _send_order(to, instance, "limit", stream_id, consumer_id, reason, max_rate_hz=hz)


@supervisor.command(epilog="\b\nExamples:\n  tensorpool supervisor redirect 20000 271828 'bridge://1?…'\n")
@click.argument("stream_id", type=StreamId())
@click.argument("consumer_id", type=click.IntRange(1))
@click.argument("uri")
@click.option("--reason", default="", help="The reason, which the decision records.")
@_instance
@connect_options
def redirect(
    to: ConnectOptions, stream_id: int, consumer_id: int, uri: str, reason: str, instance: str | None
) -> None:
    """Redirect a consumer to a fallback, until it is released or closes."""
    _send_order(to, instance, "redirect", stream_id, consumer_id, reason, uri=uri)


@supervisor.command(epilog="\b\nExamples:\n  tensorpool supervisor release 20000 271828\n")
@click.argument("stream_id", type=StreamId())
@click.argument("consumer_id", type=click.IntRange(1))
@click.option("--reason", default="", help="The reason, which the decision records.")
@_instance
@connect_options
def release(to: ConnectOptions, stream_id: int, consumer_id: int, reason: str, instance: str | None) -> None:
    """Withdraw the order for a consumer, by hand or by a rule."""
    _send_order(to, instance, "release", stream_id, consumer_id, reason)


def _send_order(
    to: ConnectOptions,
    instance: str | None,
    action: str,
    stream_id: int,
    consumer_id: int,
    reason: str,
    **more: Any,
) -> None:
    with _client(to, instance) as client:
        reply = client.call(action, stream_id=stream_id, consumer_id=consumer_id, reason=reason, **more)
    if to.json_output:
        click.echo(json.dumps(reply, indent=2))
    else:
        console(err=True).print(f"{action}: stream {stream_id}, consumer {consumer_id}")
