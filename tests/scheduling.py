"""Distribution of the tests to xdist workers (`make test`). A pytest plugin."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# A Spark session takes seconds to start and a core to run: one worker runs all of its tests.
_SPARK_TESTS = ("tests/integration/spark/", "tests/integration/pipeline/")


class SparkAwareScheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Keeps the tests of a file on one worker, because they share fixtures, and all Spark tests too."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith(_SPARK_TESTS) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return SparkAwareScheduler(config, log)
