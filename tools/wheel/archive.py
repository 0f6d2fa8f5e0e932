"""The archive format of a wheel: a ZIP file with a list of its files and their hashes.

`pack` writes a wheel. Times in it are fixed, so that the same files give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

# The earliest time that a ZIP file can hold.
_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = 0o644


def pack(target: Path, files: Mapping[str, bytes]) -> Path:
    """Writes a wheel with these files and the list of them. A list among `files` is replaced."""
    info = next(name.partition("/")[0] for name in files if name.partition("/")[0].endswith(".dist-info"))
    record = f"{info}/RECORD"
    contents = {name: data for name, data in files.items() if name != record}
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in contents.items()]
    contents[record] = ("\n".join([*lines, f"{record},,"]) + "\n").encode()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in contents.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = _MODE << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return target


def unpack(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
