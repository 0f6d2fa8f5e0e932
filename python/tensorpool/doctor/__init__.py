"""Is this machine fit, and if not, what is to be done?

The checks are pure: facts in, a verdict out. `examine` feeds them with those of this machine. It only looks:
starts nothing, makes no region, disturbs nobody.
"""

from .check import Check, Status, worst
from .examine import examine
from .sizing import Needs, Sizing, check_fit, size_stream

__all__ = ["Check", "Needs", "Sizing", "Status", "check_fit", "examine", "size_stream", "worst"]
