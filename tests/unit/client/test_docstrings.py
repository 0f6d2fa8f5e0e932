"""Docstrings of the public API, native classes included: what `help()` shows."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from importlib import import_module

import pytest

MODULES = (
    "tensorpool",
    "tensorpool._native",
    "tensorpool.pipeline",
    "tensorpool.recording",
    "tensorpool.service",
    "tensorpool.spark",
)

_METHODS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    property,
    classmethod,
    staticmethod,
    functools.cached_property,
)

# Temporary: Python members whose docstrings are still to be written. Only to be shortened.
MISSING = frozenset(
    {
        "tensorpool.client.ledger.ConsumerLedger.balanced",
        "tensorpool.client.ledger.ConsumerLedger.of",
        "tensorpool.client.ledger.Latency.json_output",
        "tensorpool.client.ledger.Latency.of",
        "tensorpool.client.ledger.ProducerLedger.of",
        "tensorpool.context.context.Context.closed",
        "tensorpool.discovery.query.DiscoveredStream.has_producer",
        "tensorpool.discovery.query.DiscoveredStream.key",
        "tensorpool.pipeline.definition.PipelineSettings.check",
        "tensorpool.pipeline.status.Status.to_json",
        "tensorpool.recording.batch.FrameBatch.arena_start",
        "tensorpool.recording.batch.FrameBatch.checksums",
        "tensorpool.recording.batch.FrameBatch.first_seq",
        "tensorpool.recording.batch.FrameBatch.last_seq",
        "tensorpool.recording.frame.RecordedFrame.crc32c",
        "tensorpool.recording.frame.RecordedFrame.cursor",
        "tensorpool.recording.frame.RecordedFrame.dtype",
        "tensorpool.recording.frame.RecordedFrame.epoch",
        "tensorpool.recording.frame.RecordedFrame.major_order",
        "tensorpool.recording.frame.RecordedFrame.meta_version",
        "tensorpool.recording.frame.RecordedFrame.nbytes",
        "tensorpool.recording.frame.RecordedFrame.publish_timestamp_ns",
        "tensorpool.recording.frame.RecordedFrame.ref",
        "tensorpool.recording.frame.RecordedFrame.seq",
        "tensorpool.recording.frame.RecordedFrame.shape",
        "tensorpool.recording.frame.RecordedFrame.stream_id",
        "tensorpool.recording.frame.RecordedFrame.trace_id",
        "tensorpool.recording.gaps.Gap.last_seq",
        "tensorpool.recording.gaps.RecordingLedger.balanced",
        "tensorpool.recording.gaps.RecordingLedger.span",
        "tensorpool.recording.recording.Recording.epochs",
        "tensorpool.recording.recording.Recording.streams",
        "tensorpool.recording.retention.ReaderLease.release",
        "tensorpool.service.agent.RunningService.close",
        "tensorpool.service.agent.RunningService.is_ready",
        "tensorpool.service.agent.RunningService.service",
        "tensorpool.service.agent.ServiceAgent.is_ready",
        "tensorpool.service.agent.ServiceAgent.on_close",
        "tensorpool.service.client.AsyncServiceClient.call",
        "tensorpool.service.client.AsyncServiceClient.get",
        "tensorpool.service.client.AsyncServiceClient.ping",
        "tensorpool.service.client.AsyncServiceClient.set",
        "tensorpool.service.client.AsyncServiceClient.watch",
        "tensorpool.service.client.ServiceClient.close",
        "tensorpool.service.declarations.Command.description",
        "tensorpool.service.declarations.Property.description",
        "tensorpool.service.service.Service.name",
        "tensorpool.spark.source.TensorPoolSource.name",
        "tensorpool.spark.source.TensorPoolSource.reader",
        "tensorpool.spark.source.TensorPoolSource.schema",
        "tensorpool.spark.source.TensorPoolSource.streamReader",
        "tensorpool.spark.source.TensorPoolSource.streamWriter",
        "tensorpool.spark.source.TensorPoolSource.writer",
    }
)


def _is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "tensorpool"


def _class_members(kind: type, name: str) -> Iterator[tuple[str, object]]:
    """The class, its methods and properties, those of its bases, and its nested classes."""
    yield name, kind
    for base in filter(_is_ours, kind.__mro__):
        for attribute, member in vars(base).items():
            if attribute.startswith("_"):
                continue
            if isinstance(member, _METHODS):
                yield f"{base.__module__}.{base.__qualname__}.{attribute}", member
            elif isinstance(member, type) and _is_ours(member):
                yield from _class_members(member, f"{member.__module__}.{member.__qualname__}")


def _members() -> dict[str, object]:
    members: dict[str, object] = {}
    for module_name in MODULES:
        module = import_module(module_name)
        members[module_name] = module
        names = getattr(module, "__all__", None) or dir(module)
        for name in names:
            member = getattr(module, name)
            if name.startswith("_"):
                continue
            if isinstance(member, type) and _is_ours(member):
                members.update(_class_members(member, f"{member.__module__}.{member.__qualname__}"))
            elif inspect.isroutine(member) or inspect.ismodule(member):
                members[f"{module_name}.{name}"] = member
    return members


def _has_docstring(member: object) -> bool:
    text = (getattr(member, "__doc__", None) or "").strip()
    # What `dataclass` generates: the signature.
    is_generated = isinstance(member, type) and text.startswith(f"{member.__name__}(")
    return bool(text) and not is_generated


def test_every_public_member_has_a_docstring() -> None:
    missing = {name for name, member in _members().items() if not _has_docstring(member)}
    assert sorted(missing - MISSING) == []


@pytest.mark.parametrize(
    "name", ["Consumer", "Frame", "MediaDriver", "OfferResult", "Producer", "Progress", "Slot"]
)
def test_methods_of_native_classes_have_a_signature(name: str) -> None:
    kind = getattr(import_module("tensorpool._native"), name)
    for attribute, member in vars(kind).items():
        if not attribute.startswith("_") and isinstance(member, types.MethodDescriptorType):
            assert inspect.signature(member).parameters, attribute
