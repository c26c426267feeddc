"""The durable root: immutable objects on any ``pyarrow.fs`` file system."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from dedup import faults
from dedup.catalog.localfile import publish
from dedup.catalog.uri import check_known, scheme_of, shown, without_credentials
from dedup.core.parse import OtherVersion
from dedup.errors import CatalogError, ConfigError, DedupError, OtherRelease
from dedup.errors import ObjectMissing as ObjectMissing  # what the methods below raise

FileSystemFactory: TypeAlias = Callable[[], tuple[pafs.FileSystem, str]]
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
        if callable(where):
            self._where: str | FileSystemFactory = where
        else:
            text = os.fspath(where) if isinstance(where, (str, os.PathLike)) else None
            if not isinstance(text, str):
                raise ConfigError(
                    f"the catalog is {where!r}; give a path, a URI or a function as text or Path"
                )
            if text != text.strip() and scheme_of(text.strip()) is not None:
                raise ConfigError(f"{shown(text.strip())!r} has blanks around it; leave them out")
            if not text:
                raise ConfigError("the catalog's path is empty; give a path, a URI or a function")
            check_known(text)
            # Workers may run in another folder than the driver, or as another user.
            self._where = text if scheme_of(text) else os.path.abspath(os.path.expanduser(text))
        self._resolved: tuple[int, pafs.FileSystem, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_where": self._where, "_resolved": None}

    def __repr__(self) -> str:
        return f"Root({self.url()!r})"

    def url(self, name: str = "") -> str:
        """Return the full path of an object for people to read, without credentials."""
        if isinstance(self._where, str):
            base = shown(self._where)
        else:
            try:
                fs, path = self._filesystem()
                base = path if _is_local(fs) else f"{fs.type_name}://{path}"
            except CatalogError:
                base = getattr(self._where, "__qualname__", "factory") + "()"
        return f"{base.rstrip('/')}/{name}" if name else base

    # --- reading

    def local_path(self, name: str) -> Path | None:
        """Return the path of an object (there or not) on this machine; None on other storage."""
        if isinstance(self._where, str) and scheme_of(self._where) not in (None, "file"):
            return None  # opening some storage already asks it
        fs, base = self._filesystem()
        return Path(base, _checked(name)) if _is_local(fs) else None

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
        """Tell whether there is an object of this name."""
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
            _checked(prefix)
        # As in `read`: an answer that was cut off passes for an empty one.
        return self._list(prefix) or self._list(prefix)

    def folders(self) -> tuple[str, ...]:
        """Return the names of the folders directly below the root."""
        infos = self._call(
            "list",
            "",
            lambda fs, path: fs.get_file_info(pafs.FileSelector(path, allow_not_found=True)),
        )
        folders = (info for info in infos if info.type == pafs.FileType.Directory)
        return tuple(sorted(info.base_name for info in folders))

    def _list(self, prefix: str) -> tuple[ObjectInfo, ...]:
        infos = self._call(
            "list",
            prefix,
            lambda fs, path: fs.get_file_info(
                pafs.FileSelector(path, recursive=True, allow_not_found=True)
            ),
        )
        files = (info for info in infos if info.type == pafs.FileType.File)
        skip = len(self._filesystem()[1]) + 1
        objects = (
            ObjectInfo(info.path[skip:], int(info.size), _modified_ms(info)) for info in files
        )
        return tuple(sorted(objects, key=lambda o: o.name))

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
            if _is_local(fs):
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
        return self._call(verb, _checked(name), action)

    def _call(self, verb: str, name: str, action: Callable[[pafs.FileSystem, str], T]) -> T:
        retry = callable(self._where)
        while True:
            try:
                fs, base = self._filesystem()
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
                        f"cannot {verb} {self.url(name)}: {_said(exc)}; check that the catalog "
                        "root is reachable, has free space, and may be read and written by this "
                        "user or with these credentials, then start the query again",
                        remedy="storage",
                    ) from exc
                retry, self._resolved = False, None

    def _filesystem(self) -> tuple[pafs.FileSystem, str]:
        if self._resolved is None or self._resolved[0] != os.getpid():
            fs, base = self._open()
            while isinstance(fs, pafs.SubTreeFileSystem) and _is_local(fs.base_fs):
                fs, base = fs.base_fs, f"{fs.base_path.rstrip('/')}/{base.strip('/')}"
            # A file system with threads of its own does not survive a fork.
            self._resolved = os.getpid(), fs, base.rstrip("/") or "/"
        return self._resolved[1:]

    def _open(self) -> tuple[pafs.FileSystem, str]:
        if callable(self._where):
            try:
                return self._where()
            except (OSError, pa.ArrowException) as exc:
                raise CatalogError(
                    f"the function given as catalog failed: {_said(exc)}; it must return "
                    "(pyarrow.fs.FileSystem, folder) on every worker",
                    remedy="storage",
                ) from exc
        if scheme_of(self._where) is None:
            return pafs.LocalFileSystem(), self._where
        try:
            fs, base = pafs.FileSystem.from_uri(self._where)
        except (OSError, pa.ArrowException, ValueError, ImportError) as exc:
            raise self._unopened(exc) from None
        return fs, str(base)

    def _unopened(self, exc: Exception) -> DedupError:
        assert isinstance(self._where, str)
        # A URI that cannot be parsed hides its credentials from `url`, and exc quotes it.
        plain = without_credentials(self._where)
        begins = f"cannot use {plain!r} as catalog: {_said(exc).replace(self._where, plain)}"
        if "libjvm" in str(exc) or "libhdfs" in str(exc):
            return ConfigError(
                f"{begins}; for hdfs:// JAVA_HOME must name a JDK, HADOOP_HOME a Hadoop that has "
                "lib/native/libhdfs.so, and CLASSPATH must be what `hadoop classpath --glob` "
                "prints, on the driver and on every executor"
            )
        if isinstance(exc, OSError):
            return CatalogError(
                f"{begins}; check that the storage is reachable and that these credentials may "
                "use it, then start the query again",
                remedy="storage",
            )
        return ConfigError(
            f"{begins}; give a local path, a URI that pyarrow.fs.FileSystem.from_uri takes "
            "(credentials with '/' or '+' percent-encoded), or a function that returns "
            "(fs, folder)"
        )


def _is_local(fs: pafs.FileSystem) -> bool:
    return isinstance(fs, pafs.LocalFileSystem)


def _said(error: Exception) -> str:
    """What a storage client says, in one line: libhdfs lists a hundred places where it looked."""
    lines = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines if len(lines) < 10 else lines[:1])


def _modified_ms(info: pafs.FileInfo) -> int | None:
    return None if info.mtime_ns is None else int(info.mtime_ns) // 1_000_000


def _checked(name: str) -> str:
    if not name or name.startswith("/") or {"", ".", ".."} & set(name.split("/")):
        raise ValueError(f"{name!r} does not name an object under a catalog root")
    return name


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
