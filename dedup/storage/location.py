"""Location of a catalog root: a folder of a file system, opened once per process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from dedup.errors import CatalogError, ConfigError, DedupError
from dedup.errors.redaction import without_secrets
from dedup.storage.uri import check_known, scheme_of, shown, without_credentials

FileSystemFactory: TypeAlias = Callable[[], tuple[pafs.FileSystem, str]]


class Location:
    """A folder of a file system, which `Root` describes."""

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
                plain = without_credentials(text.strip())
                raise ConfigError(f"{plain!r} has spaces before or after it; remove them")
            if not text:
                raise ConfigError("the catalog's path is empty; give a path, a URI or a function")
            check_known(text)
            # A worker's current folder and user may differ from the driver's.
            self._where = text if scheme_of(text) else os.path.abspath(os.path.expanduser(text))
        self._resolved: tuple[int, pafs.FileSystem, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_resolved": None}

    def url(self, name: str = "") -> str:
        """Return the full path of a file in the folder for people to read, without credentials."""
        if isinstance(self._where, str):
            base = shown(self._where)
        else:
            try:
                fs, path = self.open()
                base = path if is_local(fs) else f"{fs.type_name}://{path}"
            except CatalogError:
                base = getattr(self._where, "__qualname__", "factory") + "()"
        return f"{base.rstrip('/')}/{name}" if name else base

    def open(self) -> tuple[pafs.FileSystem, str]:
        """Return the file system and the folder's path in it."""
        if self._resolved is None or self._resolved[0] != os.getpid():
            fs, base = self._open()
            while isinstance(fs, pafs.SubTreeFileSystem) and is_local(fs.base_fs):
                fs, base = fs.base_fs, f"{fs.base_path.rstrip('/')}/{base.strip('/')}"
            # A file system with threads does not survive a fork.
            self._resolved = os.getpid(), fs, base.rstrip("/") or "/"
        return self._resolved[1:]

    def _open(self) -> tuple[pafs.FileSystem, str]:
        if callable(self._where):
            try:
                return _usable(*self._where())
            except (OSError, pa.ArrowException) as exc:
                raise CatalogError(
                    f"The catalog function failed: {error_text(exc)}. It must return "
                    "(pyarrow.fs.FileSystem, folder) on every worker.",
                    remedy="storage",
                ) from exc
        if scheme_of(self._where) is None:
            return pafs.LocalFileSystem(), self._where
        try:
            return _usable(*pafs.FileSystem.from_uri(self._where))
        except (OSError, pa.ArrowException, ValueError, ImportError) as exc:
            raise self._unopened(exc) from None

    def _unopened(self, exc: Exception) -> DedupError:
        assert isinstance(self._where, str)
        # The text of `exc` quotes the URI. `url` cannot find the credentials in an invalid URI.
        plain = without_credentials(self._where)
        reason = without_secrets(error_text(exc).replace(self._where, plain), {"uri": self._where})
        begins = f"cannot use {plain!r} as catalog: {reason}"
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


def _usable(fs: pafs.FileSystem, base: str) -> tuple[pafs.FileSystem, str]:
    """Return both, or raise the error of credentials that the client of Azure cannot use.

    If its first request reads or writes, such credentials end the whole process (std::terminate).
    """
    if fs.type_name == "abfs":
        fs.get_file_info(base)
    return fs, base


def is_local(fs: pafs.FileSystem) -> bool:
    return isinstance(fs, pafs.LocalFileSystem)


def error_text(error: Exception) -> str:
    """Return a storage client's message in one line. Messages of libhdfs may have many lines."""
    lines = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines if len(lines) < 10 else lines[:1])
