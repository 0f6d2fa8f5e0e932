"""Which tests one worker process runs when several run side by side (`make test`)."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# A Spark session takes seconds to start and a core to run: one worker has it.
_ONE_SPARK = ("tests/integration/spark/", "tests/integration/pipeline/")


class SparkAwareScheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of a file stay together, for its fixtures; so do all that use Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith(_ONE_SPARK) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return SparkAwareScheduler(config, log)
