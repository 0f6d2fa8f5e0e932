"""Faulty requests and faulty services: edge cases that a service must survive."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tensorpool.errors import ConfigError, InvalidConfig
from tensorpool.runtime.config import Config
from tensorpool.service import Event, Property, Service, command
from tensorpool.service.config import ServiceSettings
from tensorpool.service.service import ReplyCache
from tensorpool.transport.channels import ServiceStreams


class EdgeCaseService(Service, name="edge_cases"):
    mask = Property(b"")
    label = Property("a")
    levels = Property(np.zeros(2, "f4"), minimum=0.0)
    gain = Property(np.float32(1.5))
    choice = Property(b"a", choices=(b"a", b"b"))
    count = Property(0, writable=False)

    def on_set(self, name: str, value: Any) -> None:
        if isinstance(value, str) and value == "boom":
            raise KeyError(name)

    @command
    def fail(self) -> None:
        raise RuntimeError("no text: \ud800")


def ask(service: Service, key: str, value: Any = None, correlation_id: int = 1) -> list[tuple[str, Any]]:
    events = service.handle(Event("service:edge_cases", key, value, correlation_id))
    return [(e.key, e.value) for e in events if e.encode()]


def test_deeply_nested_arguments_are_rejected() -> None:
    [(key, why)] = ask(EdgeCaseService(), "fail()", "[" * 100_000)
    assert key == "fail().error"
    assert "not JSON" in why


def test_accepted_value_is_echoed_even_if_on_set_fails() -> None:
    service = EdgeCaseService()
    assert ask(service, "label", "boom") == [("label", "boom")]
    assert service.label == "boom"


def test_error_with_unencodable_text_is_reported() -> None:
    assert ask(EdgeCaseService(), "fail()")[1] == ("fail().failed", "RuntimeError: no text: ?")


def test_reply_that_cannot_be_encoded_is_left_to_the_agent() -> None:
    service = EdgeCaseService()
    service.count = 1 << 70
    request = Event("service:edge_cases", "count", None, 9)
    list(service.take_events())
    for _ in range(2):
        # The second time the reply comes from the cache.
        assert [(reply.key, reply.value) for reply in service.handle(request)] == [("count.read", 1 << 70)]
    assert ask(service, "label", correlation_id=10) == [("label.read", "a")]


def test_values_that_numpy_considers_equal_are_changes() -> None:
    service = EdgeCaseService()
    service.mask = b"\x00\x00"
    assert service.mask == b"\x00\x00"
    service.label = "a\0"
    assert [(e.key, e.value) for e in service.take_events()] == [("mask", b"\x00\x00"), ("label", "a\0")]


def test_arrays_and_numpy_numbers_are_properties_too() -> None:
    service = EdgeCaseService()
    assert ask(service, "gain", 2.5) == [("gain", 2.5)]
    [(key, value)] = ask(service, "levels", np.array([1, 2, 3], "f8"), correlation_id=2)
    assert (key, value.tolist(), value.dtype) == ("levels", [1.0, 2.0, 3.0], np.dtype("f4"))
    assert ask(service, "levels", 5.0, correlation_id=3)[0][1].tolist() == [5.0]
    assert "at least 0.0" in ask(service, "levels", np.array([-1.0]), correlation_id=4)[0][1]
    assert ask(service, "describe()", correlation_id=6)[1][0] == "describe().result"


def test_reused_correlation_id_is_rejected() -> None:
    service = EdgeCaseService()
    ask(service, "label", correlation_id=7)
    [(key, why)] = ask(service, "label", "b", correlation_id=7)
    assert key == "label.error"
    assert "used for another request" in why
    assert service.label == "a"


def test_reply_cache_is_bounded_in_bytes() -> None:
    cache = ReplyCache()
    for number in range(1, 60):
        request = Event("service:edge_cases", "label", "x" * 500_000, number)
        cache.put(request, [request])
        assert cache.get(request) == [request]
    assert 3 << 20 < cache.nbytes <= 4 << 20
    assert len(cache) < 10


def test_no_change_is_lost_between_threads() -> None:
    service = EdgeCaseService()
    seen: list[Event] = []
    done = threading.Event()

    def listen() -> None:
        while not done.is_set():
            seen.extend(service.take_events())
        seen.extend(service.take_events())

    listener = threading.Thread(target=listen)
    listener.start()
    for number in range(50_000):
        service.label = str(number)
    done.set()
    listener.join()
    assert [e.value for e in seen] == [str(n) for n in range(50_000)]


def test_empty_token_and_shared_stream_are_refused() -> None:
    with pytest.raises(ConfigError, match="the token is empty"):
        EdgeCaseService(token="")
    with pytest.raises(ConfigError, match="receive its own replies"):
        ServiceStreams(control=5, status=5)
    with pytest.raises(InvalidConfig) as error:
        Config.load(ServiceSettings, tables={"service": {"token": "", "status_stream_id": 4000}}, environ={})
    assert {problem.key for problem in error.value.problems} == {"service.token", "service.status_stream_id"}


def test_names_that_shadow_the_base_class_are_refused() -> None:
    with pytest.raises(TypeError, match="has a member of that name"):

        class Shadow(Service, name="shadow"):
            tags = Property(1)  # type: ignore[assignment]

    with pytest.raises(TypeError, match="ASCII"):
        Property(1).__set_name__(Service, "gr\u00f6\u00dfe")
    with pytest.raises(TypeError, match="token"):

        @command
        def harm(self: Any, token: str) -> None: ...
