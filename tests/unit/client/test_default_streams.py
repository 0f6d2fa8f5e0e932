"""Default channels and stream ids (wire §14)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tensorpool import StreamIds
from tensorpool.context.config import AeronSettings, ContextSettings
from tensorpool.driver import DriverSettings
from tensorpool.errors import InvalidConfig
from tensorpool.runtime.config import Config
from tensorpool.service.config import ServiceSettings
from tensorpool.transport import descriptor_channel


@pytest.fixture
def defaults() -> Config:
    return Config.load(AeronSettings, ContextSettings, DriverSettings, ServiceSettings, environ={})


@pytest.mark.requirement("wire-14-1")
def test_channels_and_stream_ids_have_explicit_defaults(defaults: Config) -> None:
    aeron: Any = defaults[AeronSettings]
    assert (
        aeron.control_stream_id,
        aeron.announce_stream_id,
        aeron.descriptor_stream_id,
        aeron.qos_stream_id,
        aeron.metadata_stream_id,
    ) == (1000, 1001, 1100, 1200, 1300)
    ids = StreamIds()
    assert (ids.control, ids.announce, ids.descriptor, ids.qos, ids.metadata) == (
        1000,
        1001,
        1100,
        1200,
        1300,
    )
    service = defaults[ServiceSettings]
    assert (service.channel, service.control_stream_id, service.status_stream_id) == ("aeron:ipc", 4000, 4001)
    assert defaults[ContextSettings].per_consumer_channels == ("aeron:ipc",)
    assert descriptor_channel(aeron.descriptor_term_bytes).startswith("aeron:ipc?term-length=2097152|")


def test_default_stream_ids_do_not_overlap(defaults: Config) -> None:
    aeron, context, driver = defaults[AeronSettings], defaults[ContextSettings], defaults[DriverSettings]
    service = defaults[ServiceSettings]
    single = (
        *(
            getattr(aeron, f"{kind}_stream_id")
            for kind in ("control", "announce", "descriptor", "qos", "metadata")
        ),
        service.control_stream_id,
        service.status_stream_id,
    )
    ranges = sorted(
        [
            *((stream_id, stream_id) for stream_id in single),
            (context.per_consumer_descriptor_ids.first, context.per_consumer_descriptor_ids.last),
            (context.per_consumer_control_ids.first, context.per_consumer_control_ids.last),
            (driver.dynamic_ids.first, driver.dynamic_ids.last),
        ]
    )
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(ranges)), ranges


@pytest.mark.parametrize("term", ["3MiB", "32KiB", "2GiB", "0"])
def test_term_length_that_aeron_does_not_allow_is_refused(term: str) -> None:
    with pytest.raises(InvalidConfig, match="power of two from 64KiB to 1GiB"):
        Config.load(AeronSettings, environ={"TENSORPOOL_AERON__DESCRIPTOR_TERM": term})
