"""Options of producers and consumers, and the requests and grants that follow from them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tensorpool import _native
from tensorpool.client import (
    ConsumerKeywords,
    ConsumerOptions,
    PerConsumerStreams,
    Producer,
    ProducerKeywords,
    ProducerOptions,
)
from tensorpool.client.options import check_stream_id, descriptor_stream_id, metadata_stream_id
from tensorpool.errors import ConfigError
from tensorpool.runtime.config import IdRange
from tensorpool.transport import StreamIds

STREAMS = PerConsumerStreams(
    channels=("aeron:ipc",),
    descriptor_ids=IdRange(31_000, 31_999),
    control_ids=IdRange(32_000, 32_999),
    progress_interval_ns=100_001,
    progress_bytes=4096,
)


def names(options: type[ProducerOptions] | type[ConsumerOptions]) -> set[str]:
    return {field.name for field in dataclasses.fields(options)}


def test_keywords_are_the_fields_of_the_options() -> None:
    assert names(ProducerOptions) == ProducerKeywords.__annotations__.keys()
    assert names(ConsumerOptions) == ConsumerKeywords.__annotations__.keys()


def test_offer_and_claim_of_a_producer_are_native_methods() -> None:
    assert Producer.offer is _native.Producer.offer
    assert Producer.claim is _native.Producer.claim


@pytest.mark.parametrize("nslots", [0, 3, -8, 1 << 21, "8", 8.0], ids=repr)
def test_number_of_slots_must_be_a_power_of_two(nslots: Any) -> None:
    with pytest.raises(ConfigError, match="power of two"):
        ProducerOptions(nslots=nslots)


@pytest.mark.parametrize(
    ("options", "needs_provision", "describes_source"),
    [
        ({}, False, False),
        ({"pools": ["64KiB"]}, True, False),
        ({"nslots": 8}, True, False),
        ({"name": "camera"}, True, True),
        ({"tags": ["lab"]}, True, True),
        ({"metadata": {}}, False, True),
        ({"dtype": "float16"}, False, True),
    ],
)
def test_layout_and_names_need_a_provision(
    options: dict[str, Any], needs_provision: bool, describes_source: bool
) -> None:
    producer = ProducerOptions(**options)
    assert (producer.needs_provision, producer.describes_source) == (needs_provision, describes_source)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "newest"}, "'stream' or 'latest'"),
        ({"max_outstanding_seq_gap": -1}, "0 or more frames"),
        ({"max_rate_hz": 0}, "frames a second"),
        ({"progress_rows": 1}, "only with progress=True"),
        ({"progress": True, "progress_bytes": -1}, "use a whole number"),
    ],
)
def test_invalid_consumer_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ConsumerOptions(**options)


@pytest.mark.parametrize("stream_id", [0, -1, 0xFFFF_FFFF, "10000", None], ids=repr)
def test_stream_id_outside_the_wire_range_is_refused(stream_id: Any) -> None:
    with pytest.raises(ConfigError, match="stream id"):
        check_stream_id(stream_id)


def test_stream_ids_of_options_replace_the_configured_ones() -> None:
    ids = StreamIds(descriptor=1100, metadata=1300)
    assert (descriptor_stream_id(ProducerOptions(), ids), metadata_stream_id(ConsumerOptions(), ids)) == (
        1100,
        1300,
    )
    options = ConsumerOptions(descriptor_stream_id=7, metadata_stream_id=8)
    assert (descriptor_stream_id(options, ids), metadata_stream_id(options, ids)) == (7, 8)
    with pytest.raises(ConfigError, match="metadata stream id 0"):
        metadata_stream_id(ProducerOptions(metadata_stream_id=0), ids)


def test_grants_round_the_progress_interval_up_and_allow_five_periods() -> None:
    grants = STREAMS.grants(report_period_ns=1_000)
    assert (grants.progress_interval_us, grants.stale_ns) == (101, 5_000)
    assert grants.descriptor_ids == (31_000, 31_999)
    assert dataclasses.replace(STREAMS, channels=()).grants(1_000).channels == ()


@pytest.mark.parametrize(
    ("options", "descriptor", "control"),
    [
        ({}, False, False),
        ({"per_consumer_stream": True}, True, False),
        ({"max_rate_hz": 5}, True, False),
        ({"progress": True}, False, True),
        ({"progress": True, "per_consumer_control": False}, False, False),
    ],
)
def test_consumer_requests_only_the_streams_of_its_options(
    options: dict[str, Any], descriptor: bool, control: bool
) -> None:
    request = STREAMS.request(ConsumerOptions(**options))
    assert request.descriptor == (("aeron:ipc", 31_000, 31_999) if descriptor else None)
    assert request.control == (("aeron:ipc", 32_000, 32_999) if control else None)
    assert request.rate_limited == ("max_rate_hz" in options)
