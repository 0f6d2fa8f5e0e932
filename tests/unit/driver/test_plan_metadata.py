"""Metadata of stream plans: published at once, every period, and with the present plan."""

from __future__ import annotations

from dataclasses import replace

from tensorpool.driver.discovery import PlanMetadata
from tensorpool.driver.plan import StreamLayout, StreamPlan
from tensorpool.sbe import DataSourceAnnounce, DataSourceMeta, decode

PERIOD_NS = 1_000


def plan(stream_id: int, name: str = "", **fields: object) -> StreamPlan:
    return StreamPlan(stream_id, StreamLayout(4, (4096,)), is_static=True, name=name, **fields)  # type: ignore[arg-type]


def names(messages: object) -> list[str]:
    decoded = [decode(message) for message in messages]  # type: ignore[attr-defined]
    return [message.name for message in decoded if isinstance(message, DataSourceAnnounce)]


def test_plan_metadata_is_published_at_once_and_every_period() -> None:
    plans = {1: plan(1, "camera", tags=("a",), data_source_id=7)}
    metadata = PlanMetadata(plans.get, period_ns=PERIOD_NS)
    announce, meta = map(decode, metadata.put(1, 50, 9, 0))
    assert isinstance(announce, DataSourceAnnounce)
    assert (announce.name, announce.epoch, announce.producer_id, announce.meta_version) == (
        "camera",
        50,
        9,
        0,
    )
    assert isinstance(meta, DataSourceMeta)
    assert [(item.key, item.value) for item in meta.attributes] == [
        ("tensorpool.tags", b'["a"]'),
        ("tensorpool.data_source_id", b"7"),
    ]
    assert list(metadata.due(PERIOD_NS - 1)) == []
    assert names(metadata.due(PERIOD_NS)) == ["camera"]
    assert names(metadata.due(PERIOD_NS)) == []
    assert names(metadata.due(2 * PERIOD_NS)) == ["camera"]


def test_stream_without_metadata_is_known_and_not_published() -> None:
    metadata = PlanMetadata({1: plan(1)}.get, period_ns=PERIOD_NS)
    assert metadata.put(1, 50, 9, 0) == ()
    assert 1 in metadata
    assert 2 not in metadata
    assert list(metadata.due(PERIOD_NS)) == []


def test_changed_plan_is_published_with_new_metadata() -> None:
    plans = {1: plan(1, "before")}
    metadata = PlanMetadata(plans.get, period_ns=PERIOD_NS)
    metadata.put(1, 50, 9, 0)
    plans[1] = replace(plans[1], name="after")
    assert names(metadata.due(PERIOD_NS)) == ["after"]


def test_removed_stream_is_not_published_and_readded_once() -> None:
    plans = {1: plan(1, "camera")}
    metadata = PlanMetadata(plans.get, period_ns=PERIOD_NS)
    for _ in range(3):
        metadata.put(1, 50, 9, 0)
    assert names(metadata.due(PERIOD_NS)) == ["camera"]
    metadata.remove(1)
    assert 1 not in metadata
    assert list(metadata.due(9 * PERIOD_NS)) == []
    metadata.put(1, 51, 9, 9 * PERIOD_NS)
    assert names(metadata.due(10 * PERIOD_NS)) == ["camera"]


def test_due_streams_are_published_a_few_at_a_time() -> None:
    plans = {number: plan(number, f"n{number}") for number in range(1, 101)}
    metadata = PlanMetadata(plans.get, period_ns=PERIOD_NS)
    for number in plans:
        metadata.put(number, 1, 0, 0)
    published = []
    for _ in range(7):
        published += names(metadata.due(PERIOD_NS))
    assert published == [f"n{number}" for number in range(1, 101)]


def test_too_long_name_is_omitted() -> None:
    metadata = PlanMetadata({1: plan(1, "é" * 129, tags=("a",))}.get, period_ns=PERIOD_NS)
    announce, _ = map(decode, metadata.put(1, 50, 9, 0))
    assert isinstance(announce, DataSourceAnnounce)
    assert announce.name == ""


def test_foreign_metadata_is_valid_if_the_plan_has_none() -> None:
    plans = {1: plan(1, "camera"), 2: plan(2)}
    metadata = PlanMetadata(plans.get, period_ns=PERIOD_NS)
    own = metadata.put(1, 50, 9, 0)
    metadata.put(2, 50, 9, 0)
    foreign = DataSourceAnnounce(stream_id=1, producer_id=9, epoch=50, meta_version=0, name="far").encode()
    assert all(metadata.is_own(1, message) for message in own)
    assert not metadata.is_own(1, foreign)
    assert metadata.is_own(2, foreign)
    plans[1] = replace(plans[1], name="after")
    # Metadata of the previous plan is not valid any more.
    assert not metadata.is_own(1, own[0])
