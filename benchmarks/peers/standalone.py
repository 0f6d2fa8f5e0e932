"""TensorPool without a driver; the difference to `tensorpool` is the cost of leases."""

from __future__ import annotations

from contextlib import AbstractContextManager

import tensorpool as tp

from .. import driver_process
from ..library import Plan
from .tensorpool import TensorPool, open_context


class StandaloneTensorPool(TensorPool):
    """TensorPool in standalone mode."""

    def terms(self) -> str:
        return "tensorpool without a driver: no leases, the producer owns the memory"

    def beside(self, plan: Plan) -> AbstractContextManager[object]:
        return driver_process.media_driver(plan.directory)

    def open(self, plan: Plan) -> tp.Context:
        return open_context(plan, "standalone")


LIBRARY = StandaloneTensorPool()
