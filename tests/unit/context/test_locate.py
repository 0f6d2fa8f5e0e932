"""Whether the driver of a discovered stream is on the media driver of the client (discovery §9)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tensorpool.context.locate import StreamLocator
from tensorpool.discovery import DiscoveredStream, DiscoverySettings
from tensorpool.transport import Connection

BRIDGE_TAG = "reach:bridge://lab?payload=x"


@pytest.fixture
def is_local(tmp_path: Path) -> Any:
    """No driver is registered on this media driver: the result and the registries decide."""

    def ask(settings: DiscoverySettings, **fields: Any) -> bool | None:
        stream = DiscoveredStream(
            **{
                "stream_id": 1,
                "name": "camera-1",
                "tags": frozenset(),
                "data_source_id": None,
                "producer_id": 7,
                "epoch": 5,
                "layout_version": 1,
                "nslots": 8,
                "pools": (4096,),
                "driver_instance_id": "lab",
                "control_channel": "aeron:ipc",
                "control_stream_id": 1000,
                **fields,
            }
        )
        connection = cast(Connection, SimpleNamespace(aeron_dir=str(tmp_path)))
        return StreamLocator(connection, settings, has_driver=False).is_local(stream)

    return ask


HERE = DiscoverySettings(channel="aeron:ipc")
ELSEWHERE = DiscoverySettings(channel="aeron:udp?endpoint=10.0.0.2:40200")


@pytest.mark.parametrize(
    ("settings", "fields", "expected"),
    [
        # A registry of this media driver says that the driver is on its own.
        (HERE, {"supports_local_attach": True}, True),
        (HERE, {"supports_local_attach": True, "tags": frozenset({BRIDGE_TAG})}, True),
        (HERE, {"tags": frozenset({BRIDGE_TAG})}, False),
        (HERE, {}, None),
        # What is local to a registry of another host is not local here.
        (ELSEWHERE, {"supports_local_attach": True}, None),
        (ELSEWHERE, {"supports_local_attach": True, "tags": frozenset({BRIDGE_TAG})}, False),
        # The driver itself answered.
        (DiscoverySettings(), {}, True),
    ],
)
def test_unregistered_driver_is_local_where_its_provider_reports_it(
    is_local: Any, settings: DiscoverySettings, fields: dict[str, Any], expected: bool | None
) -> None:
    assert is_local(settings, **fields) is expected
