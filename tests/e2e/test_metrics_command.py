"""`tensorpool metrics` as a process: the endpoint and the export of a running system."""

from __future__ import annotations

import re
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

import tensorpool as tp
from tests.e2e.commandline import TIMEOUT_S, CommandLine, offering, running

IMAGE = np.zeros((16, 16), np.uint8)


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportMetricsServiceRequest]]]:
    """A collector that keeps the requests it receives."""
    received: list[ExportMetricsServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            received.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/metrics", received
        finally:
            server.shutdown()
            thread.join()


def names(requests: list[ExportMetricsServiceRequest]) -> dict[str, Any]:
    return {
        metric.name: metric
        for request in list(requests)
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_prometheus_and_opentelemetry_get_the_same_figures(
    aeron_dir: Path, shm_base: Path, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    pytest.importorskip("opentelemetry.sdk")
    commands = CommandLine(aeron_dir, shm_base)
    with (
        collector() as (url, received),
        tp.MediaDriver(aeron_dir),
        tp.open("standalone", aeron_dir=aeron_dir, media_driver="external", shm_base_dir=shm_base) as ctx,
        ctx.producer(free_stream_id, pools=["4KiB"], nslots=8, name="camera-1") as producer,
        ctx.consumer(free_stream_id),
        offering(producer, IMAGE, hz=50),
        running(
            commands.start(
                "metrics",
                "--metrics",
                "127.0.0.1:0",
                "--set",
                f"metrics.otlp={url}",
                "--set",
                "metrics.otlp_period=1s",
                "--set",
                "log.format=json",
                stderr=-1,
            )
        ) as process,
    ):
        assert process.stderr is not None
        page_url = ""
        for line in process.stderr:
            if match := re.search(r"metrics are at (http://[^\s\"]+)", line):
                page_url = match[1]
                break
        assert page_url, "the log has no URL of the metrics"

        def scrape() -> str:
            with urllib.request.urlopen(page_url, timeout=TIMEOUT_S) as response:
                return str(response.read().decode())

        pattern = rf'^tensorpool_producer_sequences_total{{stream_id="{free_stream_id}"}} (\d+)$'
        counts = [0]

        def is_growing() -> bool:
            match = re.search(pattern, scrape(), re.MULTILINE)
            counts.append(int(match[1]) if match else 0)
            return counts[-1] > counts[-2] > 0

        wait_until(is_growing, timeout=TIMEOUT_S)
        assert f'tensorpool_stream_info{{stream_id="{free_stream_id}",name="camera-1"}} 1' in scrape()
        wait_until(lambda: "tensorpool.producer_sequences" in names(received), timeout=TIMEOUT_S)
        metric = names(received)["tensorpool.producer_sequences"]
        assert metric.sum.is_monotonic
        point = metric.sum.data_points[0]
        assert {label.key: label.value.string_value for label in point.attributes} == {
            "stream_id": str(free_stream_id)
        }
        assert names(received)["tensorpool.stream_memory"].unit == "By"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0


def test_metrics_settings_are_checked_before_anything_opens(aeron_dir: Path, shm_base: Path) -> None:
    commands = CommandLine(aeron_dir, shm_base)
    done = commands.run("metrics", "--metrics", "lab-7:9464", "--check")
    assert done.returncode == 1
    assert "is not HOST:PORT" in done.stderr
    done = commands.run("metrics", "--set", "metrics.otlp=ftp://x", "--check")
    assert "http://HOST:4318/v1/metrics" in done.stderr
    assert done.returncode == 1
