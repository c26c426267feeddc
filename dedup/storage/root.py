"""The durable root: immutable objects on any ``pyarrow.fs`` file system."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from dedup.errors import CatalogError, OtherRelease, faults
from dedup.errors import ObjectMissing as ObjectMissing
from dedup.storage.localfile import publish
from dedup.storage.location import Location, error_text, is_local
from dedup.storage.uri import scheme_of
from dedup.values.parse import OtherVersion, path_below

T = TypeVar("T")

_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class StoredFile:
    """A file under a root: its name and size, and its time by the storage's clock."""

    name: str
    size_bytes: int
    modified_ms: int | None = None

    def is_older(self, age_ms: int, *, now_ms: int) -> bool:
        """Return whether the file has this age at least. Without a time it counts as new."""
        return self.modified_ms is not None and now_ms - self.modified_ms >= age_ms


class Root(Location):
    """The objects under one folder of a file system. Each is written once, whole and durable.

    A local object is synced, then linked or renamed, and then its folder is synced. On an object
    store one PUT writes an object, and its size is read back.

    Parameters
    ----------
    where
        A local path, a URI that pyarrow knows (``s3://bucket/folder``), or a picklable function
        without parameters that returns ``(pyarrow.fs.FileSystem, folder)``. The function is called
        once per process, and again if an operation fails, because its credentials may have expired.

    Raises
    ------
    ConfigError
        If a path is empty, or pyarrow does not know the URI's scheme, such as ``s3a``.
    CatalogError
        From every method, if the storage cannot be reached or rejects the request. `ObjectMissing`
        if the object to read or copy does not exist.

    Notes
    -----
    A `Root` can be pickled. Threads that write the same names must not share a `Root`.
    """

    def __repr__(self) -> str:
        return f"Root({self.url()!r})"

    # --- reading

    def local_path(self, name: str) -> Path | None:
        """Return the local path of an object, which may not exist, or None at a remote root."""
        if isinstance(self._where, str) and scheme_of(self._where) not in (None, "file"):
            return None  # opening the folder may already contact the storage
        fs, base = self.open()
        return Path(base, path_below(name)) if is_local(fs) else None

    def size(self, name: str) -> int | None:
        info = self._info(name)
        return int(info.size) if info.type == pafs.FileType.File else None

    def modified_ms(self, name: str) -> int | None:
        """Return when an object was written by the storage's clock, or None if that is unknown."""
        return _modified_ms(self._info(name))

    def _info(self, name: str) -> pafs.FileInfo:
        return self._at("look up", name, lambda fs, path: fs.get_file_info(path))

    def exists(self, name: str) -> bool:
        return self.size(name) is not None

    def read_bytes(self, name: str) -> bytes:
        """Return the content of an object, or raise ObjectMissing if it does not exist."""

        def read(fs: pafs.FileSystem, path: str) -> bytes:
            with fs.open_input_stream(path, compression=None) as stream:
                return bytes(stream.read())

        return self._at("read", name, read)

    def read(self, name: str, parse: Callable[[bytes], T]) -> T:
        """Return ``parse(content)`` of an object, or raise ObjectMissing if it does not exist.

        ``parse`` raises ValueError or CatalogError if the content is damaged. The method then reads
        the object once more, because an object store's client may return no bytes, or zeros,
        without an error. The error is raised if ``parse`` fails again.

        Raises OtherRelease if ``parse`` finds a format that this release does not know.
        """
        data = self.read_bytes(name)
        try:
            with contextlib.suppress(ValueError, CatalogError):
                return parse(data)
            return parse(self.read_bytes(name))
        except OtherVersion as exc:
            raise OtherRelease.at(self.url(name), exc) from exc

    def open_input(self, name: str) -> pa.NativeFile:
        return self._at("read", name, lambda fs, path: fs.open_input_stream(path, compression=None))

    def fetch(self, name: str, local_path: str | os.PathLike[str]) -> tuple[int, int]:
        """Copy an object to a new local file, and return its size in bytes and its CRC-32."""

        def copy(fs: pafs.FileSystem, path: str) -> tuple[int, int]:
            size = crc = 0
            with fs.open_input_stream(path, compression=None) as stream:
                # Never write into an existing file, because it may be a hard link to an object.
                Path(local_path).unlink(missing_ok=True)
                with open(local_path, "xb") as out:
                    while chunk := stream.read(_CHUNK_BYTES):
                        out.write(chunk)
                        size, crc = size + len(chunk), zlib.crc32(chunk, crc)
            return size, crc

        return self._at("fetch", name, copy)

    def list(self, prefix: str = "") -> tuple[StoredFile, ...]:
        """Return all objects in a folder and its subfolders, by name, or () without the folder."""
        if prefix:
            path_below(prefix)
        # List again, because a truncated answer looks like an empty one, as in `read`.
        infos = self._infos(prefix) or self._infos(prefix)
        skip = len(self.open()[1]) + 1
        return tuple(
            StoredFile(info.path[skip:], int(info.size), _modified_ms(info))
            for info in infos
            if info.type == pafs.FileType.File
        )

    def folders(self) -> tuple[str, ...]:
        if self.open()[0].type_name == "gcs":  # pyarrow does not list folders there
            names = (file.name.partition("/") for file in self.list())
            return tuple(sorted({folder for folder, slash, _ in names if slash}))
        infos = self._infos("", recursive=False)
        return tuple(info.base_name for info in infos if info.type == pafs.FileType.Directory)

    def _infos(self, folder: str, *, recursive: bool = True) -> Sequence[pafs.FileInfo]:
        def infos(fs: pafs.FileSystem, path: str) -> Sequence[pafs.FileInfo]:
            selector = pafs.FileSelector(path, recursive=recursive, allow_not_found=True)
            return sorted(fs.get_file_info(selector), key=lambda info: info.path)

        return self._call("list", folder, infos)

    # --- writing

    def put_bytes(self, name: str, data: bytes) -> None:
        """Write or replace an object. No reader sees half an object."""
        self._put(name, data, create=False)

    def create_bytes(self, name: str, data: bytes) -> bool:
        """Write a new object, or write nothing and return False if it exists.

        On storage without exclusive creation the result may be True for two writers. Read the
        object back to learn whose bytes it holds.
        """
        return self._put(name, data, create=True)

    def put_file(self, name: str, local_path: str | os.PathLike[str]) -> None:
        """Write a new object from a file that never changes, or raise CatalogError if it exists."""
        if not self._put(name, Path(local_path), create=True):
            raise CatalogError(
                f"{self.url(name)} exists already, but names of segments are unique: two queries "
                "share one catalog and run ID. Give each query its own checkpoint.",
                remedy="name-taken",
            )

    def copy(self, name: str, to: str) -> None:
        """Copy an object within the root, or raise ObjectMissing if it does not exist.

        On an object store the copy appears whole. On other file systems a reader may see half a
        copy.
        """
        path_below(to)

        def copy(fs: pafs.FileSystem, path: str) -> None:
            fs.copy_file(path, f"{self.open()[1]}/{to}")

        self._at("copy", name, copy)

    def delete_folder(self, name: str) -> None:
        with contextlib.suppress(ObjectMissing):
            self._at("delete", name, lambda fs, path: fs.delete_dir(path))

    def delete(self, names: Iterable[str]) -> int:
        """Delete objects, and return how many existed."""
        deleted = 0
        for name in names:
            with contextlib.suppress(ObjectMissing):
                self._at("delete", name, lambda fs, path: fs.delete_file(path))
                deleted += 1
        return deleted

    def _put(self, name: str, content: bytes | Path, *, create: bool) -> bool:
        begun = False

        def put(fs: pafs.FileSystem, path: str) -> bool:
            nonlocal begun
            if is_local(fs):
                return publish(Path(path), content, create=create)
            # After a failed attempt, the existing object may be our own.
            if create and not begun and fs.get_file_info(path).type != pafs.FileType.NotFound:
                return False
            begun = True
            faults.point("upload.before")
            size = _upload(fs, path, content)
            faults.point("upload.after")
            stored = fs.get_file_info(path).size
            if stored != size:
                raise OSError(errno.EIO, f"{size} bytes were written but {stored} are stored")
            return True

        return self._at("write", name, put)

    def _at(self, verb: str, name: str, action: Callable[[pafs.FileSystem, str], T]) -> T:
        return self._call(verb, path_below(name), action)

    def _call(self, verb: str, name: str, action: Callable[[pafs.FileSystem, str], T]) -> T:
        retry = callable(self._where)  # calling it again may give new credentials
        while True:
            try:
                fs, base = self.open()
                return action(fs, f"{base}/{name}" if name else base)
            except (OSError, pa.ArrowException) as exc:
                # A write creates the folder, so FileNotFoundError does not mean a missing object.
                if isinstance(exc, FileNotFoundError) and verb != "write":
                    raise ObjectMissing(
                        f"cannot {verb} {self.url(name)}: it does not exist. If it was deleted or "
                        "not copied, restore the catalog together with its checkpoint.",
                        remedy="missing-catalog",
                    ) from exc
                if not retry:
                    raise CatalogError(
                        f"cannot {verb} {self.url(name)}: {error_text(exc)}. Check that the "
                        "catalog root is reachable, has free space, and that this user or these "
                        "credentials may read and write it. Then start the query again.",
                        remedy="storage",
                    ) from exc
                retry = False
                self._resolved = None


def _modified_ms(info: pafs.FileInfo) -> int | None:
    return None if info.mtime_ns is None else int(info.mtime_ns) // 1_000_000


def _upload(fs: pafs.FileSystem, path: str, content: bytes | Path) -> int:
    try:
        stream = fs.open_output_stream(path, compression=None)
    except FileNotFoundError:  # a file system with real folders
        fs.create_dir(path.rpartition("/")[0], recursive=True)
        stream = fs.open_output_stream(path, compression=None)
    with stream:
        if isinstance(content, bytes):
            stream.write(content)
            return len(content)
        with open(content, "rb") as source:
            shutil.copyfileobj(source, stream, _CHUNK_BYTES)
            return source.tell()
