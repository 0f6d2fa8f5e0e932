"""Exchange of two directories in one step: a reader finds one or the other, never none or both."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from pathlib import Path
from typing import Final

_HERE: Final = -100
"""AT_FDCWD: paths are from the working directory."""
_EXCHANGE: Final = 2
"""RENAME_EXCHANGE."""
_NOT_HERE: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EMLINK)


def swap_directories(one: Path, other: Path) -> None:
    """Raises OSError; where the filesystem cannot do it (NFS), nothing has changed."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(one)) from None
    if call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one), None, str(other))


def can_exchange(directory: Path) -> bool:
    """Whether the filesystem of a directory does this, and gives a file two names. Tries it."""
    token = secrets.token_hex(4)
    places = [directory / f"exchange-{token}-{name}" for name in "ab"]
    file = places[0] / "file"
    try:
        for one in places:
            one.mkdir(mode=0o700)
        file.touch(mode=0o600)
        os.link(file, places[1] / "link")
        swap_directories(*places)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        return False
    finally:
        for one in places:
            for name in ("file", "link"):
                (one / name).unlink(missing_ok=True)
            if one.is_dir():
                one.rmdir()
    return True
