"""A thousand streams with four consumers each, reporting once a second: what it costs to watch them."""

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
from tests.integration.supervisor.load import Crowd, Supervisor
from tests.remote_process import RemoteProcess

STREAMS, CONSUMERS = 1000, 4
# An announce, a QoS and a status report a stream; a QoS report, a hello and a status report a consumer.
MESSAGES = STREAMS * (3 + 3 * CONSUMERS)
HOUR_S = 3600.0
SCRAPE_S = 15.0
MOST_SHARE = 0.20
MOST_GROWTH = 16 << 20


@pytest.mark.long
@pytest.mark.timeout(HOUR_S + 600)
def test_a_thousand_streams_take_little_time_and_no_more_memory_as_time_goes_by(
    aeron_dir: Path, shm_base: Path, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    """With everything that they tell: QoS reports, hellos and status reports; rules, the ledger and the
    metrics, which are scraped as Prometheus does."""
    seconds = float(os.environ.get("TENSORPOOL_SUPERVISOR_SECONDS", HOUR_S))
    options: dict[str, Any] = {"aeron_dir": str(aeron_dir), "shm_base_dir": str(shm_base)}
    with (
        tp.open("embedded", **options),
        RemoteProcess(Crowd) as crowd,
        Supervisor(aeron_dir, shm_base, tmp_path) as supervisor,
    ):
        url = wait_until(supervisor.url, timeout=60)
        crowd.call("speak", options=options, streams=STREAMS, consumers=CONSUMERS)
        wait_until(lambda: sees_all(url), timeout=60)
        # What is allocated at first is not growth: figures and names of everybody are there after a while.
        watch(supervisor, url, min(45.0, seconds))
        said, began, (cpu_s, _) = crowd.call("count"), time.monotonic(), supervisor.cost()
        looks = watch(supervisor, url, seconds)
        elapsed, (cpu_after_s, _) = time.monotonic() - began, supervisor.cost()
        rate = (crowd.call("count") - said) / elapsed
        # On a machine that is busy with other things the crowd speaks less often: by the message, then.
        share = (cpu_after_s - cpu_s) / elapsed * MESSAGES / rate
        part = len(looks) // 3 or 1
        at_first, at_last = median(looks[:part]), median(looks[-part:])
        print(
            f"cpu {share:.1%} of a core, {rate:,.0f} messages/s; memory {at_first:,.0f}, then {at_last:,.0f}"
        )
        assert rate > MESSAGES / 4
        wait_until(lambda: sees_all(url), timeout=60)
        assert share < MOST_SHARE
        # Where it stands, not its peaks: those are as high as the machine is busy with other things.
        assert at_last - at_first < MOST_GROWTH
        crowd.call("close")
        assert supervisor.end() == 0


def scraped(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        page: str = response.read().decode()
        return page


def sees_all(url: str) -> bool:
    """Every stream is live, every consumer there, and every frame accounted for."""
    page = scraped(url)
    paths = re.findall(r'^tensorpool_ledger_paths{verdict="(\w+)"} (\d+)', page, re.MULTILINE)
    verdicts = Counter({verdict: int(n) for verdict, n in paths})
    return (
        f'tensorpool_streams{{state="live"}} {STREAMS}\n' in page
        and f"tensorpool_consumers {STREAMS * CONSUMERS}\n" in page
        and page.count("tensorpool_consumer_latency_p99_seconds{") == STREAMS * CONSUMERS
        and verdicts.total() == verdicts["exact"] + verdicts["waiting"] == STREAMS * (1 + CONSUMERS)
    )


def watch(supervisor: Supervisor, url: str, seconds: float) -> list[int]:
    """Scrapes now and then; the memory at each time."""
    looks: list[int] = []
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 or not looks:
        time.sleep(max(0.0, min(left, SCRAPE_S)))
        scraped(url)
        cpu_s, nbytes = supervisor.cost()
        looks.append(nbytes)
        print(f"{cpu_s:8.1f} s of cpu, {nbytes >> 10:,} KiB", flush=True)
    return looks
