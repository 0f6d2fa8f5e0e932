"""Is this machine fit, and if not, what is to be done?

The checks are pure: facts in, a verdict out. `examine` feeds them with those of this machine. It only looks:
starts nothing, makes no region, disturbs nobody.
"""

from .check import Check, Status, worst
from .examine import examine

__all__ = ["Check", "Status", "examine", "worst"]
