"""`[discovery]` and `[registry]`: invalid settings are refused when they are loaded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tensorpool.discovery import DiscoverySettings
from tensorpool.discovery.requests import INVALID, REFUSED, REJECTED, UNSENT
from tensorpool.errors import InvalidConfig
from tensorpool.registry import RegistrySettings
from tensorpool.runtime.config import Config, IdRange
from tensorpool.transport import StreamAddress


def load(text: str, tmp_path: Path) -> Config:
    file = tmp_path / "config.toml"
    file.write_text(text, "utf-8")
    return Config.load(DiscoverySettings, RegistrySettings, file=file, environ={})


def test_all_settings_have_defaults(tmp_path: Path) -> None:
    config = load("", tmp_path)
    discovery, registry = config[DiscoverySettings], config[RegistrySettings]
    assert (discovery.channel, discovery.registries, discovery.embedded) == (None, (), True)
    assert (discovery.response_stream_id, registry.channel, registry.stream_id) == (7004, "aeron:ipc", 7000)
    assert discovery.provider.max_results == 1000
    assert discovery.provider.responses == ()


def test_all_tables_are_read(tmp_path: Path) -> None:
    config = load(
        """
        [discovery]
        channel = "aeron:udp?endpoint=10.0.0.1:40123"
        replicas = ["aeron:udp?endpoint=10.0.0.2:40123"]
        timeout = "2s"
        [discovery.provider]
        responses = ["10.0.0.0/24:40124"]
        [[discovery.provider.rules]]
        clients = ["7", "100-199"]
        names = ["camera-*"]
        [[registry.drivers]]
        instance_id = "lab"
        announce_channel = "aeron:udp?endpoint=10.0.0.1:40125"
        streams = ["10000-10999"]
        announce_period = "500ms"
        """,
        tmp_path,
    )
    discovery, (driver,) = config[DiscoverySettings], config[RegistrySettings].drivers
    assert len(discovery.registries) == 2
    assert discovery.timeout_ns == 2_000_000_000
    assert discovery.provider.rules[0].clients == (IdRange(7, 7), IdRange(100, 199))
    assert driver.addresses == (
        StreamAddress("aeron:udp?endpoint=10.0.0.1:40125", 1001),
        StreamAddress("aeron:udp?endpoint=10.0.0.1:40125", 1300),
    )
    assert driver.has(10_500)
    assert not driver.has(9)
    assert driver.announce_period_ns == 500_000_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[discovery]\nreplicas = ["aeron:ipc"]', "needs a channel"),
        ('[discovery]\nchannel = "ipc"', "use a channel"),
        (
            '[discovery]\nchannel = "aeron:udp?endpoint=h:1"\nresponse_channel = "aeron:ipc"',
            "limited to this host",
        ),
        ('[discovery.provider]\nresponses = ["everywhere"]', "addresses and ports"),
        ("[discovery.provider]\nmax_results = 0", "at least 1"),
        ("[[registry.drivers]]\ncontrol_stream_id = 5", "instance_id"),
        (
            '[[registry.drivers]]\ninstance_id = "a"\n[[registry.drivers]]\ninstance_id = "a"',
            "is listed 2 times",
        ),
        (
            '[[registry.drivers]]\ninstance_id = "a"\n[[registry.drivers]]\ninstance_id = "b"',
            "announce on the same stream",
        ),
        (
            '[[registry.drivers]]\ninstance_id = "a"\nstreams = ["1-5"]\n'
            '[[registry.drivers]]\ninstance_id = "b"\nstreams = ["5-9"]',
            "announce on the same stream",
        ),
        ('[[registry.drivers]]\ninstance_id = "a b\\n"', "visible ASCII"),
    ],
)
def test_invalid_settings_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=message):
        load(text, tmp_path)


@pytest.mark.parametrize(
    "second",
    [
        'streams = ["6-9"]',
        "announce_stream_id = 1011\nmetadata_stream_id = 1310",
        'announce_channel = "aeron:udp?endpoint=h:1"',
    ],
)
def test_distinguishable_drivers_may_share_an_address(second: str, tmp_path: Path) -> None:
    first = 'instance_id = "a"\nstreams = ["1-5"]'
    text = f'[[registry.drivers]]\n{first}\n[[registry.drivers]]\ninstance_id = "b"\n{second}'
    assert len(load(text, tmp_path)[RegistrySettings].drivers) == 2


def test_reference_page_lists_every_counted_reason() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "discovery.md").read_text("utf-8")
    documented = set(re.findall(r"`(\w+)`", page.partition("## Counters")[2]))
    for reasons in (REFUSED, REJECTED, UNSENT, INVALID):
        assert set(reasons) <= documented
