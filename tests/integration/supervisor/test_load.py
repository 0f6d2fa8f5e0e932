"""The cost of supervising a thousand streams with four consumers each, which report once a second."""

from __future__ import annotations

import os
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import tensorpool as tp
from tests.integration.supervisor.load import SupervisorProcess, SyntheticSystem
from tests.remote_process import RemoteProcess

STREAMS, CONSUMERS = 1000, 4
# An announce, a QoS and a status report of each stream; hello, QoS and status report of each consumer.
MESSAGES = STREAMS * (3 + 3 * CONSUMERS)
HOUR_S = 3600.0
SCRAPE_S = 15.0
MAX_SHARE = 0.20
MAX_GROWTH = 16 << 20


@pytest.mark.long
@pytest.mark.timeout(HOUR_S + 600)
def test_supervisor_of_a_thousand_streams_is_cheap_and_does_not_grow(
    aeron_dir: Path, shm_base: Path, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    """With all messages of the endpoints, rules, the ledger, and metrics that are scraped."""
    seconds = float(os.environ.get("TENSORPOOL_SUPERVISOR_SECONDS", HOUR_S))
    options: dict[str, Any] = {"aeron_dir": str(aeron_dir), "shm_base_dir": str(shm_base)}
    with (
        tp.open("embedded", **options),
        RemoteProcess(SyntheticSystem) as system,
        SupervisorProcess(aeron_dir, shm_base, tmp_path) as supervisor,
    ):
        url = wait_until(supervisor.url, timeout=60)
        system.call("publish", options=options, streams=STREAMS, consumers=CONSUMERS)
        wait_until(lambda: sees_all(url), timeout=60)
        # Allocations of the start are no growth: the state of all endpoints is complete after a while.
        watch(supervisor, url, min(45.0, seconds))
        sent, start, (cpu_s, _) = system.call("count"), time.monotonic(), supervisor.cost()
        samples = watch(supervisor, url, seconds)
        elapsed, (cpu_after_s, _) = time.monotonic() - start, supervisor.cost()
        rate = (system.call("count") - sent) / elapsed
        # A busy machine publishes fewer messages: the share is computed for the full number.
        share = (cpu_after_s - cpu_s) / elapsed * MESSAGES / rate
        part = len(samples) // 3 or 1
        at_first, at_last = median(samples[:part]), median(samples[-part:])
        print(
            f"cpu {share:.1%} of a core, {rate:,.0f} messages/s; memory {at_first:,.0f}, then {at_last:,.0f}"
        )
        assert rate > MESSAGES / 4
        wait_until(lambda: sees_all(url), timeout=60)
        assert share < MAX_SHARE
        # Medians, not peaks: those depend on the load of the machine.
        assert at_last - at_first < MAX_GROWTH
        system.call("close")
        assert supervisor.end() == 0


def scraped(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        page: str = response.read().decode()
        return page


def sees_all(url: str) -> bool:
    """Whether every stream is live, every consumer present, and every frame accounted for."""
    page = scraped(url)
    paths = re.findall(r'^tensorpool_ledger_paths{verdict="(\w+)"} (\d+)', page, re.MULTILINE)
    verdicts = Counter({verdict: int(n) for verdict, n in paths})
    return (
        f'tensorpool_streams{{state="live"}} {STREAMS}\n' in page
        and f"tensorpool_consumers {STREAMS * CONSUMERS}\n" in page
        and page.count("tensorpool_consumer_latency_p99_seconds{") == STREAMS * CONSUMERS
        and verdicts.total() == verdicts["exact"] + verdicts["waiting"] == STREAMS * (1 + CONSUMERS)
    )


def watch(supervisor: SupervisorProcess, url: str, seconds: float) -> list[int]:
    """Scrapes for this long. Returns the memory after each scrape."""
    samples: list[int] = []
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 or not samples:
        time.sleep(max(0.0, min(left, SCRAPE_S)))
        scraped(url)
        cpu_s, nbytes = supervisor.cost()
        samples.append(nbytes)
        print(f"{cpu_s:8.1f} s of cpu, {nbytes >> 10:,} KiB", flush=True)
    return samples
