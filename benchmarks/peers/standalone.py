"""TensorPool without a driver: what leases cost is the difference."""

from __future__ import annotations

from contextlib import AbstractContextManager

import tensorpool as tp

from .. import driver_process
from ..library import Plan
from ..ours import TensorPool, open_context


class StandAlone(TensorPool):
    def terms(self) -> str:
        return "tensorpool without a driver: no leases, the producer owns the memory"

    def beside(self, plan: Plan) -> AbstractContextManager[object]:
        return driver_process.media_driver(plan.directory)

    def open(self, plan: Plan) -> tp.Context:
        return open_context(plan, "standalone")


LIBRARY = StandAlone()
