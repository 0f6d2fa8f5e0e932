"""Faults of a bridge's configuration are reported with their keys."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tensorpool.bridge import BridgeSettings
from tensorpool.bridge.faults import (
    BridgeIds,
    DriverIds,
    driver_faults,
    host_faults,
    neighbour_faults,
)
from tensorpool.bridge.mappings import SourceStreams, dynamic_ids, resolve_mappings
from tensorpool.context.config import ContextSettings
from tensorpool.errors import InvalidConfig
from tensorpool.runtime.config import Config, IdRange
from tensorpool.transport import DedicatedStreams, ServiceStreams, StreamAddress, StreamIds

PAYLOAD, CONTROL, METADATA = (f"aeron:udp?endpoint=10.0.0.2:{port}" for port in (40100, 40101, 40102))
OTHER = tuple(f"aeron:udp?endpoint=10.0.0.1:{port}" for port in (40100, 40101, 40102))
EXAMPLE = Path(__file__).parents[3] / "examples" / "bridge" / "bridge.toml"


def mapping(source: int = 10_000, dest: int = 50_000, **settings: Any) -> dict[str, Any]:
    return {"source_stream_id": source, "dest_stream_id": dest, **settings}


def load(*mappings: dict[str, Any], **settings: Any) -> BridgeSettings:
    table = {
        "instance_id": "lab",
        "payload_channel": PAYLOAD,
        "control_channel": CONTROL,
        "metadata_channel": METADATA,
        "mappings": list(mappings or [mapping()]),
        **settings,
    }
    loaded: BridgeSettings = Config.load(BridgeSettings, tables={"bridge": table}, environ={})[BridgeSettings]
    return loaded


def problems(*mappings: dict[str, Any], **settings: Any) -> list[tuple[str | None, str]]:
    with pytest.raises(InvalidConfig) as caught:
        load(*mappings, **settings)
    return [(problem.key, problem.reason) for problem in caught.value.problems]


def test_defaults_are_those_of_the_specification():
    settings = load()
    assert settings.max_chunk_bytes == 65_535
    assert settings.max_payload_bytes == 1 << 30
    assert settings.assembly_timeout_ms == 250
    assert settings.forward_metadata
    assert not settings.forward_qos
    assert not settings.forward_progress
    assert settings.dest_stream_id_range is None
    assert settings.mtu_bytes is None
    assert settings.chunk_bytes is None
    assert (settings.payload_stream_id, settings.control_stream_id, settings.metadata_stream_id) == (
        3000,
        3001,
        3002,
    )


@pytest.mark.parametrize("key", ["instance_id", "payload_channel", "control_channel", "mappings"])
def test_required_settings_are_reported_if_missing(key: str):
    table: dict[str, Any] = {
        "instance_id": "lab",
        "payload_channel": PAYLOAD,
        "control_channel": CONTROL,
        "forward_metadata": False,
        "mappings": [mapping()],
    }
    del table[key]
    with pytest.raises(InvalidConfig, match=f"bridge.{key}"):
        Config.load(BridgeSettings, tables={"bridge": table}, environ={})


@pytest.mark.requirement("bridge-10-1")
def test_example_configuration_is_valid():
    settings = Config.load(BridgeSettings, file=EXAMPLE, environ={})[BridgeSettings]
    assert resolve_mappings(settings)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("payload_channel", "aeron:ipc"),
        ("control_channel", "aeron:udp?mtu=1408"),
        ("metadata_channel", "udp://10.0.0.2"),
        ("mtu_bytes", 100),
        ("mtu_bytes", 1401),
        ("chunk_bytes", 0),
        ("max_chunk_bytes", 65_536),
        ("max_payload_bytes", (1 << 30) + 1),
        ("assembly_timeout_ms", 0),
        ("dest_stream_id_range", "59999-50000"),
        ("control_stream_id", 3000),
    ],
)
def test_invalid_value_is_reported_with_its_key(key: str, value: object):
    shared = {"control_channel": PAYLOAD} if key == "control_stream_id" else {}
    assert f"bridge.{key}" in [fault_key for fault_key, _ in problems(**{key: value, **shared})]


def test_id_range_may_be_text_or_two_numbers():
    text, numbers = load(dest_stream_id_range="50000-59999"), load(dest_stream_id_range=[50_000, 59_999])
    assert text == numbers


@pytest.mark.requirement("bridge-7.1-4")
def test_forward_metadata_needs_a_channel():
    [(key, reason)] = problems(metadata_channel="")
    assert key == "bridge.metadata_channel"
    assert "forward_metadata = false" in reason
    settings = load(metadata_channel="", forward_metadata=False)
    assert resolve_mappings(settings)[0].metadata is None
    per_mapping = load(mapping(metadata_channel=METADATA), metadata_channel="")
    assert resolve_mappings(per_mapping)[0].metadata == StreamAddress(METADATA, 3002)


@pytest.mark.requirement("bridge-9-8", "bridge-9-9")
@pytest.mark.parametrize("flag", ["forward_progress", "forward_qos"])
@pytest.mark.parametrize("missing", ["source_control_stream_id", "dest_control_stream_id"])
def test_forwarding_needs_both_control_streams(flag: str, missing: str):
    ids = {"source_control_stream_id": 1000, "dest_control_stream_id": 1000}
    assert resolve_mappings(load(mapping(**ids), **{flag: True}))
    [(key, reason)] = problems(mapping(**(ids | {missing: 0})), **{flag: True})
    assert key == f"bridge.{flag}"
    assert f"mappings[0].{missing}" in reason


@pytest.mark.requirement("bridge-2.3-1")
def test_mappings_must_not_form_a_loop():
    out = mapping(1000, 2000, direction="send")
    other = dict(zip(("payload_channel", "control_channel", "metadata_channel"), OTHER, strict=True))
    back = mapping(2000, 1000, direction="receive", **other)
    [(key, reason)] = problems(out, back)
    assert key == "bridge.mappings"
    assert "a loop" in reason
    assert resolve_mappings(load(out, mapping(3000, 1001, direction="receive", **other)))


@pytest.mark.requirement("bridge-2.3-1", "bridge-2.3-2")
def test_stream_ids_of_a_channel_must_differ():
    [(key, reason)] = problems(mapping(1, 2), mapping(1, 3))
    assert (key, "mappings[1].source_stream_id 1" in reason) == ("bridge.mappings", True)
    [(key, reason)] = problems(mapping(1, 3), mapping(2, 3), direction="receive")
    assert (key, "mappings[1].dest_stream_id 3" in reason) == ("bridge.mappings", True)
    both = (mapping(1, 2, direction="send"), mapping(3, 4, direction="receive"))
    keys = [key for key, _ in problems(*both)]
    assert keys == [f"bridge.{purpose}_stream_id" for purpose in ("payload", "control", "metadata")]
    # Each of the three streams needs an id of its own in the other direction.
    own = {"payload_stream_id": 3010, "control_stream_id": 3011, "metadata_transport_stream_id": 3012}
    assert resolve_mappings(load(both[0], both[1] | own))
    for missing, purpose in zip(own, ("payload", "control", "metadata"), strict=True):
        [(key, reason)] = problems(both[0], both[1] | {name: n for name, n in own.items() if name != missing})
        assert key == f"bridge.{purpose}_stream_id"
        assert "mappings[1] receives on" in reason


def test_channels_with_other_parameters_are_the_same_channel():
    both = (mapping(1, 2, direction="send"), mapping(3, 4, direction="receive"))
    elsewhere = {"control_stream_id": 3011, "metadata_transport_stream_id": 3012}
    [(key, _)] = problems(both[0], both[1] | elsewhere | {"payload_channel": f"{PAYLOAD}|reliable=false"})
    assert key == "bridge.payload_stream_id"


def test_payload_of_a_mapping_must_not_meet_control_of_another():
    [(key, reason)] = problems(
        mapping(1, 2), mapping(3, 4, control_channel=PAYLOAD, control_stream_id=3000), direction="receive"
    )
    assert (key, "has the payload messages of mappings[0]" in reason) == ("bridge.control_stream_id", True)


def test_sender_reads_the_dedicated_streams_of_its_sources() -> None:
    ids = StreamIds(
        dedicated=(
            DedicatedStreams(1, control=6100, qos=6200, metadata=6300),
            DedicatedStreams(9, control=6900),
        )
    )
    settings = load(
        mapping(1, 2, source_control_stream_id=6101, dest_control_stream_id=6102),
        mapping(3, 4, source_control_stream_id=1000, dest_control_stream_id=1000),
        forward_qos=True,
    )
    streams = SourceStreams.from_mappings(settings, resolve_mappings(settings), ids)
    # Those of stream 9, which does not cross, are not read.
    assert [each.stream_id for each in streams.traces] == [1000, 6101, 6100]
    assert [each.stream_id for each in streams.control] == [6101, 1000, 6100, 1200, 6200]
    assert [each.stream_id for each in streams.metadata] == [1300, 6300]
    nothing = load(mapping(1, 2), forward_metadata=False, forward_traces=False)
    streams = SourceStreams.from_mappings(nothing, resolve_mappings(nothing), ids)
    assert (streams.control, streams.traces, streams.metadata) == ((), (), ())


@pytest.mark.requirement("bridge-4-1")
def test_streams_of_a_bridge_have_ids_of_their_own():
    settings = load()
    ids = {settings.payload_stream_id, settings.control_stream_id, settings.metadata_stream_id}
    local, services = StreamIds(), ServiceStreams()
    used = {*(getattr(local, field.name) for field in fields(local)), services.control, services.status}
    context = ContextSettings()
    assert len(ids) == 3
    assert not ids & used
    for taken in (context.per_consumer_descriptor_ids, context.per_consumer_control_ids):
        assert not any(number in taken for number in ids)
    for key in ("payload_stream_id", "control_stream_id", "metadata_stream_id"):
        clash = load(**{key: local.descriptor})
        [fault] = host_faults(clash, {"the descriptor stream": local.descriptor})
        assert (fault.key, fault.reason.startswith("is 1100, which is the descriptor")) == (key, True)


def test_destinations_without_a_range_have_the_default_one():
    free = dynamic_ids(load(mapping(1, 0), mapping(2, 50_000), direction="receive"))
    assert (free[0], free[-1], len(free)) == (50_001, 59_999, 9_999)
    assert dynamic_ids(load(mapping(dest=50_000), direction="receive")) == []
    assert dynamic_ids(load(mapping(dest=0), direction="send")) == []


DRIVER = DriverIds(frozenset({10_000}), IdRange(20_000, 29_999), IdRange(50_000, 59_999), any_stream=False)


@pytest.mark.requirement("bridge-4-4", "bridge-10-2")
@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ("50000-59999", None),
        ("50500-50600", None),
        ("10000-10001", "contains 10000, a static stream of the driver"),
        ("29999-30001", "overlaps the driver's dynamic_ids, 20000-29999"),
        ("59000-60000", "is not within the driver's bridge_ids (50000-59999)"),
    ],
)
def test_range_must_fit_the_running_driver(ids: str, reason: str | None):
    settings = load(mapping(dest=0), direction="receive", dest_stream_id_range=ids)
    reasons = [fault.reason for fault in driver_faults(settings, DRIVER)]
    assert any(reason in each for each in reasons) if reason else reasons == []
    # A range that no mapping uses takes nothing.
    unused = load(mapping(dest=1), direction="receive", dest_stream_id_range=ids)
    assert list(driver_faults(unused, DRIVER)) == []


@pytest.mark.requirement("bridge-4-4", "bridge-10-2")
def test_range_must_not_overlap_another_bridge():
    dynamic = load(mapping(dest=0), direction="receive", dest_stream_id_range="50000-50009")
    named = load(mapping(dest=50_005), direction="receive")
    other = BridgeIds("other", IdRange(50_005, 50_020), frozenset({50_001}))
    assert [fault.key for fault in neighbour_faults(dynamic, [other])] == ["dest_stream_id_range"] * 2
    [fault] = neighbour_faults(named, [other])
    assert (fault.key, "50005-50020 of bridge other" in fault.reason) == ("mappings", True)
    assert list(neighbour_faults(named, [BridgeIds("other", None, frozenset({50_001}))])) == []
    [fault] = neighbour_faults(named, [BridgeIds("other", None, frozenset({50_005}))])
    assert fault.reason == (
        "mappings[0].dest_stream_id 50005: already used by bridge other; a stream has one producer"
    )
    # Nothing is received on the sending side, whatever destination it names.
    sending = load(mapping(dest=50_005), direction="send")
    assert list(neighbour_faults(sending, [BridgeIds("other", None, frozenset({50_005}))])) == []


@pytest.mark.requirement("bridge-4-4", "bridge-10-2")
def test_dynamic_destinations_need_an_unused_range():
    common: dict[str, Any] = {"direction": "receive", "dest_stream_id_range": "50000-50001"}
    assert resolve_mappings(load(mapping(dest=0), **common))
    [(key, reason)] = problems(*(mapping(source, 0) for source in (1, 2, 3)), **common)
    assert (key, reason) == ("bridge.dest_stream_id_range", "has 2 ids for 3 mappings")
    for clash in (
        {"mappings": [mapping(dest=50_000)]},
        {"mappings": [mapping(dest=1, metadata_stream_id=50_001)]},
        {"mappings": [mapping(dest=1, source_control_stream_id=50_001)]},
        {"metadata_stream_id": 50_000, "mappings": [mapping(dest=1)]},
    ):
        [(key, reason)] = problems(**(common | clash))
        assert (key, reason.startswith("contains 5000")) == ("bridge.dest_stream_id_range", True)


@pytest.mark.requirement("bridge-4-4", "bridge-10-2")
def test_destinations_must_not_use_the_hosts_ids():
    settings = load(mapping(dest=1100), direction="receive", dest_stream_id_range="1000-1001")
    in_use = {"the control stream": 1000, "the descriptor stream": 1100, "another": 7}
    assert list(host_faults(settings, in_use)) == [
        ("dest_stream_id_range", "contains 1000, which is the control stream"),
        ("mappings", "mappings[0].dest_stream_id 1100: that is the descriptor stream"),
    ]


def test_profile_must_exist():
    [(key, reason)] = problems(mapping(profile="big"))
    assert (key, "mappings[0].profile 'big'" in reason) == ("bridge.mappings", True)
    assert resolve_mappings(load(mapping(profile="big"), profiles=[{"name": "big", "pools": ["1MiB"]}]))
    assert problems(mapping(profile="big"), profiles=[{"name": "big", "pools": ["3MiB"]}])


def test_one_file_configures_both_ends():
    table: dict[str, Any] = {
        "mappings": [
            mapping(),
            mapping(
                2,
                3,
                direction="receive",
                payload_channel=OTHER[0],
                control_channel=OTHER[1],
                metadata_channel=OTHER[2],
            ),
        ]
    }
    assert [resolved.direction for resolved in resolve_mappings(load(**table))] == ["send", "receive"]
    sender, receiver = (resolve_mappings(load(direction=direction))[0] for direction in ("send", "receive"))
    assert (sender.is_sending, receiver.is_sending) == (True, False)
    assert sender.payload == receiver.payload


def test_empty_mappings_are_refused():
    assert problems(mappings=[]) == [("bridge.mappings", "is empty; add a [[bridge.mappings]]")]
