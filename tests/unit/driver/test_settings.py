"""The settings of `[driver]` (driver §4.4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorpool.driver import DriverSettings
from tensorpool.errors import InvalidConfig
from tensorpool.runtime.config import Config, IdRange

TEXT = """
[driver]
keepalive = "500ms"
grace = 4
quota = "2GiB"
dynamic_ids = "30000-30999"
group = "lab"
mode = "0640"
shutdown_token = "secret"

[[driver.streams]]
stream_id = 10000
name = "camera-1"
nslots = 16
pools = ["64KiB", "4MiB"]
tags = ["lab", "left"]
owner = "alice"
group = "cameras"
mode = "0660"
quota = "1GiB"
max_leases = 10
hugepages = true
"""


def load(path: Path, text: str) -> DriverSettings:
    path = path / "driver.toml"
    path.write_text(text)
    return Config.load(DriverSettings, file=path, environ={})[DriverSettings]


def test_all_driver_settings_are_read(tmp_path: Path) -> None:
    settings = load(tmp_path, TEXT)
    assert settings.lease_ns == 2_000_000_000
    assert settings.quota_bytes == 2 << 30
    assert settings.dynamic_ids == IdRange(30_000, 30_999)
    assert settings.mode == 0o640
    assert settings.shutdown_token is not None
    (stream,) = settings.streams
    assert (stream.stream_id, stream.name, stream.nslots) == (10_000, "camera-1", 16)
    assert stream.pools == (64 << 10, 4 << 20)
    assert stream.tags == ("lab", "left")
    assert (stream.owner, stream.group, stream.mode) == ("alice", "cameras", 0o660)
    assert (stream.quota_bytes, stream.max_leases) == (1 << 30, 10)
    assert stream.hugepages is True


@pytest.mark.requirement("driver-4.4-5", "driver-4.4-6")
def test_defaults_are_those_of_the_specification(tmp_path: Path) -> None:
    settings = load(tmp_path, "")
    assert (settings.keepalive_ns, settings.grace) == (1_000_000_000, 3)
    assert settings.dynamic_ids == IdRange(20_000, 29_999)
    assert settings.pools == (64 << 10, 1 << 20, 4 << 20)
    page = (Path(__file__).parents[3] / "docs" / "reference" / "configuration.md").read_text()
    section = page.split("## `[driver]`")[1]
    assert '| `keepalive` | duration | `"1s"` |' in section
    assert "| `grace` | whole number | `3` |" in section


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('[driver]\ndynamic_ids = "5-4"', "the last id is below the first; write '4-5'"),
        ('[driver]\ndynamic_ids = "0-9"', "use ids from 1 to 4294967294"),
        ('[driver]\nshutdown_token = ""', "is empty; remove it"),
        (
            "[[driver.streams]]\nstream_id = 1\n[[driver.streams]]\nstream_id = 1",
            "stream 1 is configured 2 times",
        ),
        ("[[driver.streams]]\nnslots = 8", "driver.streams[0].stream_id: missing"),
        ("[[driver.streams]]\nstream_id = 1\nnslots = 3", "use a power of two"),
        ('[[driver.streams]]\nstream_id = 1\npools = ["3KiB"]', "must be a power of two"),
        ("[[driver.streams]]\nstream_id = 1\npools = []", "pools is empty"),
        ("[[driver.streams]]\nstream_id = 4294967295", "at most 4294967294"),
        ('[[driver.streams]]\nstream_id = 1\nname = "a\\nb"', "visible characters"),
        ('[[driver.streams]]\nstream_id = 1\ntags = [""]', "is empty"),
        ('[driver]\ninstance_id = "../x"', "no leading dot"),
        ("[driver]\ngraze = 3", "did you mean 'grace'?"),
    ],
)
def test_invalid_settings_are_named(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(tmp_path, text)
    assert part in str(caught.value)
