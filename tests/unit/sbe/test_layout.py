"""Offsets and numbers of the protocols, repeated here by hand so that they never change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tensorpool import sbe
from tensorpool.sbe import layout

ROOT = Path(__file__).parents[3]

BLOCKS = {
    ("wire-900", "ShmPoolAnnounce"): (1, 35),
    ("wire-900", "ConsumerHello"): (2, 39),
    ("wire-900", "ConsumerConfig"): (3, 18),
    ("wire-900", "FrameDescriptor"): (4, 40),
    ("wire-900", "QosConsumer"): (5, 41),
    ("wire-900", "QosProducer"): (6, 28),
    ("wire-900", "DataSourceAnnounce"): (7, 20),
    ("wire-900", "DataSourceMeta"): (8, 16),
    ("wire-900", "ControlResponse"): (9, 12),
    ("wire-900", "MetaBlobAnnounce"): (10, 28),
    ("wire-900", "FrameProgress"): (11, 29),
    ("wire-900", "MetaBlobChunk"): (12, 16),
    ("wire-900", "MetaBlobComplete"): (13, 16),
    ("wire-900", "ShmRegionSuperblock"): (50, 64),
    ("wire-900", "SlotHeader"): (51, 60),
    ("wire-900", "TensorHeader"): (52, 184),
    ("wire-900-r2", "ConsumerConfig"): (3, 22),
    ("driver-901", "ShmAttachRequest"): (1, 24),
    ("driver-901", "ShmAttachResponse"): (2, 51),
    ("driver-901", "ShmDetachRequest"): (3, 25),
    ("driver-901", "ShmDetachResponse"): (4, 12),
    ("driver-901", "ShmLeaseKeepalive"): (5, 25),
    ("driver-901", "ShmDriverShutdown"): (6, 9),
    ("driver-901", "ShmLeaseRevoked"): (7, 26),
    ("driver-901-r2", "ShmAttachRequest"): (1, 27),
    ("driver-901-r2", "ShmAttachResponse"): (2, 54),
    ("driver-901-r2", "ShmDetachRequest"): (3, 25),
    ("driver-901-r2", "ShmDetachResponse"): (4, 12),
    ("driver-901-r2", "ShmLeaseKeepalive"): (5, 25),
    ("driver-901-r2", "ShmDriverShutdown"): (6, 9),
    ("driver-901-r2", "ShmLeaseRevoked"): (7, 26),
    ("driver-901-r2", "ShmDriverShutdownRequest"): (8, 9),
    ("bridge-902", "BridgeFrameChunk"): (1, 41),
    ("bridge-902-r2", "BridgeFrameChunk"): (1, 53),
    ("merge-903", "SequenceMergeMapAnnounce"): (1, 20),
    ("merge-903", "SequenceMergeMapRequest"): (2, 12),
    ("merge-903", "TimestampMergeMapAnnounce"): (3, 29),
    ("merge-903", "TimestampMergeMapRequest"): (4, 12),
    ("trace-904", "TraceLinkSet"): (1, 28),
    ("discovery-910", "DiscoveryRequest"): (1, 32),
    ("discovery-910", "DiscoveryResponse"): (2, 9),
    ("service-920", "EventMessage"): (1, 48),
    ("status-921", "ProducerStatus"): (1, 69),
    ("status-921", "ConsumerStatus"): (2, 134),
}


def offsets(kind: type[sbe.Message]) -> dict[str, int]:
    return kind.layout().offsets()


@pytest.mark.requirement("discovery-10-4")
def test_template_ids_and_block_lengths():
    got = {(m.schema, m.name): (m.template_id, m.block_length) for m in layout.messages()}
    assert got == BLOCKS
    ids = {schema.name: (schema.schema_id, schema.version) for schema in layout.schemas()}
    assert ids == {name: (int(name.split("-")[1]), 1) for name in layout.SCHEMA_NAMES}


@pytest.mark.requirement("wire-8.2-2")
def test_slot_header_is_packed():
    assert offsets(sbe.SlotHeader) == {
        "seqCommit": 0,
        "valuesLenBytes": 8,
        "payloadSlot": 12,
        "poolId": 16,
        "payloadOffset": 18,
        "timestampNs": 22,
        "metaVersion": 30,
        "pad": 34,
    }


@pytest.mark.requirement("wire-8.2-1")
def test_tensor_header_is_packed_without_max_dims():
    assert offsets(sbe.TensorHeader) == {
        "dtype": 0,
        "majorOrder": 2,
        "ndims": 4,
        "padAlign": 5,
        "progressUnit": 6,
        "progressStrideBytes": 7,
        "dims": 11,
        "strides": 43,
        "pad": 75,
    }
    assert sbe.TensorHeader.max_dims == 8
    assert sbe.TensorHeader.layout().field("maxDims").size == 0


def test_event_message_is_packed():
    assert offsets(sbe.EventMessage) == {
        "timestampNs": 0,
        "correlationId": 8,
        "format": 16,
        "pad": 17,
        "refStreamId": 20,
        "refEpoch": 24,
        "refSeq": 32,
        "traceId": 40,
    }


def test_later_revisions_have_the_offsets_of_deployed_peers():
    request = offsets(sbe.ShmAttachRequestR2)
    assert (request["publishMode"], request["hugepagesPolicy"], request["desiredNodeId"]) == (21, 22, 23)
    response = sbe.ShmAttachResponseR2.layout()
    assert response.field("nodeId").offset == sbe.ShmAttachResponse.layout().field("maxDims").offset == 50
    chunk = offsets(sbe.BridgeFrameChunkR2)
    assert (chunk["seq"], chunk["traceId"], chunk["chunkIndex"]) == (12, 20, 28)
    assert (chunk["payloadLength"], chunk["payloadCrc32c"], chunk["headerIncluded"]) == (44, 48, 52)


@pytest.mark.requirement("wire-15.8-2")
def test_registered_enum_values_stay():
    assert {member.name: member.value for member in sbe.Dtype} == {
        "UNKNOWN": 0,
        "UINT8": 1,
        "INT8": 2,
        "UINT16": 3,
        "INT16": 4,
        "UINT32": 5,
        "INT32": 6,
        "UINT64": 7,
        "INT64": 8,
        "FLOAT32": 9,
        "FLOAT64": 10,
        "BOOLEAN": 11,
        "BYTES": 13,
        "BIT": 14,
    }
    assert [(m.name, m.value) for m in sbe.MajorOrder] == [("UNKNOWN", 0), ("ROW", 1), ("COLUMN", 2)]


@pytest.mark.requirement("wire-10.1-1", "driver-4.2-5", "driver-4.2-7", "discovery-5.0-1")
def test_nulls_are_the_explicit_sentinels():
    nulls: dict[tuple[str, bool], set[int | None]] = {}
    for message in layout.messages():
        for block in (message, *message.groups):
            for field in block.fields:
                if field.optional:
                    nulls.setdefault((field.primitive, field.name == "traceId"), set()).add(field.null)
    assert nulls == {
        ("uint8", False): {0xFF},
        ("uint16", False): {0xFFFF},
        ("uint32", False): {0xFFFFFFFF},
        ("uint64", False): {0xFFFFFFFFFFFFFFFF},
        ("uint64", True): {0},
        ("int32", False): {-(1 << 31)},
        ("int64", False): {-(1 << 63)},
    }


@pytest.mark.requirement("wire-10.1-3")
def test_no_var_data_is_marked_optional():
    for name in layout.SCHEMA_NAMES:
        text = (ROOT / "schemas" / f"{name}.xml").read_text()
        assert not [line for line in text.splitlines() if "<data" in line and "presence" in line]


def test_schema_folder_has_exactly_the_known_schemas():
    assert {path.stem for path in (ROOT / "schemas").glob("*")} == set(layout.SCHEMA_NAMES)
    assert (ROOT / "schemas").resolve() == Path(layout.__file__).parent / "schemas"


def test_import_of_sbe_parses_and_compiles_nothing():
    """The command line imports this at every start."""
    code = "import sys, tensorpool.sbe; sys.exit('tensorpool.sbe.schema_xml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "python", check=False).returncode == 0
