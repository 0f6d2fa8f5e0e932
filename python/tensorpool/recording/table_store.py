"""Where tables are stored: a directory, or a prefix of an object store (S3, GCS, Azure).

Names below the root use `/`. Nothing is renamed and nothing is locked: a file is written under a name that
is used once, and one kind of object is created only if it does not exist. Credentials come from the
environment of each process (`AWS_…`, `GOOGLE_…`, `AZURE_…`) and are never part of a name.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

import pyarrow as pa

from ..durable import make_directories, replace_file, sync_directory, sync_file, write_errors
from ..errors import ConfigError, MissingPackage
from .storage import local_directory

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://", re.ASCII)
_SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")


def is_object_store(root: str) -> bool:
    """Whether a root is on an object store."""
    match = _URI.match(root)
    return match is not None and match[1].lower() != "file"


def root_fault(root: str) -> str | None:
    """Why tables cannot be stored there; None if they can."""
    if is_object_store(root):
        scheme = root.partition("://")[0].lower()
        if scheme in _SCHEMES:
            return None
        return f"{scheme}:// is not supported; use a directory or one of {', '.join(_SCHEMES)}"
    try:
        local_directory(root)
    except ConfigError as error:
        return str(error)
    return None


class NewFile(Protocol):
    """A file that is being written. It exists for others after `close`."""

    @property
    def size(self) -> int:
        """Bytes written so far."""

    def sink(self) -> Any:
        """What pyarrow writes to."""

    def close(self) -> int:
        """Makes the file durable; returns its size."""


class TableStore(Protocol):
    """The root of a pipeline's tables."""

    url: str

    def put(self, name: str, content: bytes) -> None:
        """Writes an object, over an existing one."""

    def put_new(self, name: str, content: bytes) -> bool:
        """Writes an object unless it exists; returns whether it was written. Of two callers one gets True."""

    def get(self, name: str) -> bytes | None:
        """The content of an object; None if it does not exist."""

    def names(self, prefix: str) -> list[str]:
        """The names of the objects right below a prefix, without it, in order."""

    def remove(self, name: str) -> None:
        """Removes an object, if it exists."""

    def create(self, name: str) -> NewFile:
        """Begins a file under a new name."""

    def source(self, name: str) -> Any:
        """What `pyarrow.parquet.ParquetFile` opens to read a file."""


def open_store(root: str | os.PathLike[str]) -> TableStore:
    """The store of a root. Raises ConfigError or MissingPackage."""
    given = os.fspath(root)
    return ObjectStore(given) if is_object_store(given) else DirectoryStore(local_directory(given))


def exclusive_fault(store: TableStore, directory: str) -> str | None:
    """Why two callers could create the same object of a store; None if only one of them can.

    Tried out with an object of its own in a directory of the store: some servers take no notice of the
    condition, and overwrite. Raises what the store raises if it does not answer.
    """
    name = f"{directory}/{secrets.token_hex(8)}.probe"
    try:
        # What exists is created once more, with other bytes.
        is_exclusive = store.put_new(name, b"first") and not store.put_new(name, b"second")
    except Exception as error:
        # If any object can be written, then the condition is what the store refuses.
        store.put(name, b"third")
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return f"it refuses to create an object only if it does not exist ({lines[0]})"
    finally:
        with contextlib.suppress(Exception):
            store.remove(name)
    return None if is_exclusive else "it overwrites an object that is to be created only if it does not exist"


# --- a directory


class DirectoryStore(TableStore):
    """Tables in a directory. What `put`, `put_new` and `create` have written survives a loss of power."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = str(root)

    def put(self, name: str, content: bytes) -> None:
        path = self._root / name
        with write_errors(path):
            _directories(path.parent, self._root)
            replace_file(path, content, mode=0o600)

    def put_new(self, name: str, content: bytes) -> bool:
        path = self._root / name
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with write_errors(path):
            _directories(path.parent, self._root)
            try:
                replace_file(draft, content, mode=0o600)
                # A link is created or refused, at once; a rename would replace another's decision.
                os.link(draft, path)
            except FileExistsError:
                return False
            finally:
                draft.unlink(missing_ok=True)
            sync_directory(path.parent)
        return True

    def get(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, prefix: str) -> list[str]:
        try:
            return sorted(entry for entry in os.listdir(self._root / prefix) if not entry.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._root / name).unlink()

    def create(self, name: str) -> NewFile:
        return _NewLocalFile(self._root / name, self._root)

    def source(self, name: str) -> Any:
        return str(self._root / name)


class _NewLocalFile:
    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        with write_errors(path):
            _directories(path.parent, root)
            # Created with private permissions; Arrow opens the existing file and writes without a copy.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    @property
    def size(self) -> int:
        return self._path.stat().st_size

    def sink(self) -> Any:
        return str(self._path)

    def close(self) -> int:
        with write_errors(self._path):
            sync_file(self._path)
            sync_directory(self._path.parent)
        return self.size


def _directories(directory: Path, root: Path) -> None:
    if not directory.is_dir():
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_directories(directory, above=root)


class _Counted(io.RawIOBase):
    """A file object for pyarrow that counts what is written. pyarrow must not close the file."""

    def __init__(self, owner: Any, file: Any) -> None:
        super().__init__()
        self._owner = owner
        self._file = file

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            at += self._file.write(view[at:]) or len(view)
        self._owner.size += len(view)
        return len(view)

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._owner.size)

    def writable(self) -> bool:
        return True


# --- an object store


class ObjectStore(TableStore):
    """Tables below a prefix of a bucket, through `obstore`."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise MissingPackage(
                f"tables in {url} need a package: pip install 'aeron-tensorpool[delta]'"
            ) from error
        self._obstore = obstore
        self._store = from_url(self.url)

    def put(self, name: str, content: bytes) -> None:
        self._obstore.put(self._store, name, content)

    def put_new(self, name: str, content: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        try:
            self._obstore.put(self._store, name, content, mode="create")
        except AlreadyExistsError:
            # A retried request may meet the object that its first attempt has written.
            return self.get(name) == content
        return True

    def get(self, name: str) -> bytes | None:
        try:
            return bytes(self._obstore.get(self._store, name).bytes())
        except FileNotFoundError:
            return None

    def names(self, prefix: str) -> list[str]:
        found: list[str] = []
        above = f"{prefix.rstrip('/')}/"
        for chunk in self._obstore.list(self._store, above):
            found += [entry["path"].removeprefix(above) for entry in chunk]
        return sorted(found)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._obstore.delete(self._store, name)

    def create(self, name: str) -> NewFile:
        return _NewObject(self._obstore.open_writer(self._store, name))

    def source(self, name: str) -> Any:
        return pa.PythonFile(cast(BinaryIO, _RangeFile(self._obstore, self._store, name)), mode="r")


class _NewObject:
    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self.size = 0

    def sink(self) -> Any:
        return _Counted(self, self._writer)

    def close(self) -> int:
        self._writer.close()
        return self.size


class _RangeFile(io.RawIOBase):
    """A seekable file over ranged reads of an object."""

    def __init__(self, obstore: Any, store: Any, name: str) -> None:
        super().__init__()
        self._obstore, self._store, self._name = obstore, store, name
        self._size = int(obstore.head(store, name)["size"])
        self._at = 0

    def read(self, count: int = -1) -> bytes:
        end = self._size if count < 0 else min(self._at + count, self._size)
        if end <= self._at:
            return b""
        data = bytes(self._obstore.get_range(self._store, self._name, start=self._at, end=end))
        self._at = end
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
