"""Who may map a stream's memory: owner, group and mode of its files and of the directories above them.

Pure. The kernel does the enforcing; here is what it is told. Clients walk down to a region with nothing but
the right to pass (`x`) on each directory, and open the file itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PRIVATE_PARENT: Final = 0o700
SHARED_PARENT: Final = 0o711
"""Anyone may pass through to what the directories below let them; nobody else may list."""

_SETGID: Final = 0o2000
_PASS: Final = 0o011


@dataclass(frozen=True, slots=True)
class Access:
    """As configured: names, not ids. `mode` is that of the files."""

    owner: str | None = None
    group: str | None = None
    mode: int | None = None

    @property
    def file_mode(self) -> int:
        if self.mode is not None:
            return self.mode
        return 0o600 if self.group is None else 0o660

    @property
    def dir_mode(self) -> int:
        """For the directories of the stream and of its epochs: who may read or write the files may list
        them and pass, who may write them may write there (wire §15.21a.6)."""
        mode = 0o700 if self.group is None else 0o700 | _SETGID
        for shift in (3, 0):
            bits = self.file_mode >> shift & 0o6
            mode |= (bits | (0o5 if bits else 0)) << shift
        # Directories stay the driver's, or an owner could unlink and replace what is in them. So the owner
        # of the files is a stranger there, and all it needs is to pass.
        return mode if self.owner is None else mode | _PASS

    @property
    def parent_mode(self) -> int:
        """For the directories of the user and of the namespace, which all streams share."""
        is_private = self.owner is None and self.dir_mode & 0o077 == 0
        return PRIVATE_PARENT if is_private else SHARED_PARENT
