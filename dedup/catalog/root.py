"""The durable root: immutable objects on any ``pyarrow.fs`` file system."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from dedup.catalog.localfile import publish
from dedup.catalog.location import FileSystemFactory, Location, error_text, is_local
from dedup.core.parse import OtherVersion, path_below
from dedup.errors import CatalogError, OtherRelease, faults
from dedup.errors import ObjectMissing as ObjectMissing  # what the methods below raise

T = TypeVar("T")

_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object under the root: name relative to it, size, and when the storage says it came."""

    name: str
    size_bytes: int
    modified_ms: int | None = None


class Root:
    """Objects under one folder of a file system, written once, whole and durable.

    On a local file system an object appears by fsync and atomic link or rename, and its folder is
    synced after; elsewhere by one PUT, whose size is read back.

    Parameters
    ----------
    where : str, PathLike or callable
        A local path, a URI that pyarrow knows (``s3://bucket/folder``), or a picklable function
        without parameters that returns ``(pyarrow.fs.FileSystem, folder)``. The function is called
        once per process, and again when an operation fails (its credentials may have run out).

    Raises
    ------
    ConfigError
        When a path is empty, or a URI is none that pyarrow knows, such as ``s3a://bucket``.
    CatalogError
        From every method, when the storage cannot be reached or refuses.

    Notes
    -----
    Picklable. Not shared between threads that write the same names.
    """

    def __init__(self, where: str | os.PathLike[str] | FileSystemFactory) -> None:
        self._location = Location(where)

    def __repr__(self) -> str:
        return f"Root({self.url()!r})"

    def url(self, name: str = "") -> str:
        """Return the full path of an object for people to read, without credentials."""
        return self._location.url(name)

    # --- reading

    def local_path(self, name: str) -> Path | None:
        """Return the path of an object (there or not) on this machine; None on other storage."""
        if self._location.asks_storage:
            return None
        fs, base = self._location.open()
        return Path(base, path_below(name)) if is_local(fs) else None

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes, None where there is none."""
        info = self._info(name)
        return int(info.size) if info.type == pafs.FileType.File else None

    def modified_ms(self, name: str) -> int | None:
        """Return when an object came, by the storage's clock; None where it does not say."""
        return _modified_ms(self._info(name))

    def _info(self, name: str) -> pafs.FileInfo:
        return self._at("look up", name, lambda fs, path: fs.get_file_info(path))

    def exists(self, name: str) -> bool:
        """Return whether there is an object of this name."""
        return self.size(name) is not None

    def read_bytes(self, name: str) -> bytes:
        """Return the content of an object; ObjectMissing where there is none."""

        def read(fs: pafs.FileSystem, path: str) -> bytes:
            with fs.open_input_stream(path, compression=None) as stream:
                return bytes(stream.read())

        return self._at("read", name, read)

    def read(self, name: str, parse: Callable[[bytes], T]) -> T:
        """Return what ``parse`` makes of an object's content; ObjectMissing where there is none.

        Parameters
        ----------
        name : str
        parse : callable
            Raises ValueError or CatalogError where the content cannot be what was written. Only
            the second time that counts: the client of an object store takes an answer that ends
            in the middle of its head for one of no bytes, or of zeros.

        Raises
        ------
        OtherRelease
            When ``parse`` finds a format that this release does not know.
        """
        data = self.read_bytes(name)
        try:
            with contextlib.suppress(ValueError, CatalogError):
                return parse(data)
            return parse(self.read_bytes(name))
        except OtherVersion as exc:
            raise OtherRelease.at(self.url(name), exc) from exc

    def open_input(self, name: str) -> pa.NativeFile:
        """Return an object opened for reading from its beginning; ObjectMissing without one."""
        return self._at("read", name, lambda fs, path: fs.open_input_stream(path, compression=None))

    def fetch(self, name: str, local_path: str | os.PathLike[str]) -> tuple[int, int]:
        """Copy an object to a new local file; return its size in bytes and its CRC-32.

        Raises
        ------
        ObjectMissing
            When there is no such object.
        CatalogError
            When root or local disk fail.
        """

        def copy(fs: pafs.FileSystem, path: str) -> tuple[int, int]:
            size = crc = 0
            with fs.open_input_stream(path, compression=None) as stream:
                # A file that is there might be a hard link to an object; never write into it.
                Path(local_path).unlink(missing_ok=True)
                with open(local_path, "xb") as out:
                    while chunk := stream.read(_CHUNK_BYTES):
                        out.write(chunk)
                        size, crc = size + len(chunk), zlib.crc32(chunk, crc)
            return size, crc

        return self._at("fetch", name, copy)

    def list(self, prefix: str = "") -> tuple[ObjectInfo, ...]:
        """Return all objects in a folder and below it, by name; none where there is no folder."""
        if prefix:
            path_below(prefix)
        # As in `read`: an answer that was cut off passes for an empty one.
        return self._list(prefix) or self._list(prefix)

    def folders(self) -> tuple[str, ...]:
        """Return the names of the folders directly below the root."""
        infos = self._infos("", recursive=False)
        folders = (info for info in infos if info.type == pafs.FileType.Directory)
        return tuple(sorted(info.base_name for info in folders))

    def _list(self, prefix: str) -> tuple[ObjectInfo, ...]:
        files = (i for i in self._infos(prefix) if i.type == pafs.FileType.File)
        skip = len(self._location.open()[1]) + 1
        objects = (
            ObjectInfo(info.path[skip:], int(info.size), _modified_ms(info)) for info in files
        )
        return tuple(sorted(objects, key=lambda o: o.name))

    def _infos(self, folder: str, *, recursive: bool = True) -> Iterator[pafs.FileInfo]:
        def infos(fs: pafs.FileSystem, path: str) -> Iterator[pafs.FileInfo]:
            selector = pafs.FileSelector(path, recursive=recursive, allow_not_found=True)
            return iter(fs.get_file_info(selector))

        return self._call("list", folder, infos)

    # --- writing

    def put_bytes(self, name: str, data: bytes) -> None:
        """Write an object; one that is there already is replaced, never seen half."""
        self._put(name, data, create=False)

    def create_bytes(self, name: str, data: bytes) -> bool:
        """Write an object that is not there yet; return False, writing nothing, where it is.

        Storage that cannot create exclusively may let two writers both believe that they were
        first: read the object back to learn whose bytes are there.
        """
        return self._put(name, data, create=True)

    def put_file(self, name: str, local_path: str | os.PathLike[str]) -> None:
        """Write an object from a local file, which stays, and must not be changed afterwards.

        Raises
        ------
        CatalogError
            When the name is taken: objects of this kind are never changed.
        """
        if not self._put(name, Path(local_path), create=True):
            raise CatalogError(
                f"{self.url(name)} is there already, but names of segments are unique for ever: "
                "two queries share one catalog and run ID; give each query its own checkpoint",
                remedy="name-taken",
            )

    def copy(self, name: str, to: str) -> None:
        """Copy an object within the root; it appears whole. ObjectMissing where there is none."""
        path_below(to)

        def copy(fs: pafs.FileSystem, path: str) -> None:
            fs.copy_file(path, f"{self._location.open()[1]}/{to}")

        self._at("copy", name, copy)

    def delete_folder(self, name: str) -> None:
        """Delete a folder and all that is in it; a missing one is fine."""
        with contextlib.suppress(ObjectMissing):
            self._at("delete", name, lambda fs, path: fs.delete_dir(path))

    def delete(self, names: Iterable[str]) -> int:
        """Delete objects; return how many were there. Missing ones are fine."""
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
            # What is there after a failed try may be our own.
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
        retry = self._location.is_made_by_user
        while True:
            try:
                fs, base = self._location.open()
                return action(fs, f"{base}/{name}" if name else base)
            except (OSError, pa.ArrowException) as exc:
                # To write, the folder is made: what is missing then is no object.
                if isinstance(exc, FileNotFoundError) and verb != "write":
                    raise ObjectMissing(
                        f"cannot {verb} {self.url(name)}: there is no such object; if it was "
                        "deleted or not copied, restore the catalog together with its checkpoint",
                        remedy="missing-catalog",
                    ) from exc
                if not retry:
                    raise CatalogError(
                        f"cannot {verb} {self.url(name)}: {error_text(exc)}; check that the "
                        "catalog root is reachable, has free space, and may be read and written by "
                        "this user or with these credentials, then start the query again",
                        remedy="storage",
                    ) from exc
                retry = False
                self._location.close()


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
