"""Status reports as `tensorpool service log` and `watch` print them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tensorpool import sbe
from tensorpool.cli.service import print_events
from tensorpool.service import Event

REPORT = sbe.ProducerStatus(
    stream_id=5,
    producer_id=7,
    pid=8,
    is_final=False,
    epoch=1,
    next_seq=20,
    committed=19,
    published=17,
    deferred=0,
    holes=1,
    payload_bytes=64,
    unpublished=(sbe.ReasonCount(frames=2, reason="closed"),),
    sources=(sbe.SourceStream(stream_id=3),),
)
TAG = "service:producer:5"


def printed(capsys: pytest.CaptureFixture[str], event: Event, json_output: bool) -> str:
    print_events(iter([event]), json_output)
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize("json_output", [True, False])
def test_status_reports_are_printed_as_json(capsys: pytest.CaptureFixture[str], json_output: bool) -> None:
    text = printed(capsys, Event(TAG, "status", REPORT.encode()), json_output)
    fields: dict[str, Any]
    if json_output:
        line = json.loads(text)
        assert (line["tag"], line["key"]) == (TAG, "status")
        fields = line["value"]
    else:
        name, _, value = text.partition(" = ")
        assert name == f"{TAG} status"
        fields = json.loads(value)
    assert (fields["stream_id"], fields["committed"], fields["is_final"]) == (5, "19", False)
    assert fields["unpublished"] == [{"frames": "2", "reason": "closed"}]
    assert fields["sources"] == [{"stream_id": 3}]


@pytest.mark.parametrize(("key", "value"), [("status", b"\x01\x02"), ("other", REPORT.encode())])
def test_other_bytes_are_printed_as_hex(capsys: pytest.CaptureFixture[str], key: str, value: bytes) -> None:
    line = json.loads(printed(capsys, Event(TAG, key, value), json_output=True))
    assert line["value"] == {"hex": value.hex()}
