"""Paths and URIs, and what to write instead of a URI that pyarrow does not know."""

from __future__ import annotations

import re
from urllib.parse import unquote

from dedup.errors import ConfigError

#: At least two characters, because a drive letter of Windows is not a scheme.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
#: Schemes that `pyarrow.fs.FileSystem.from_uri` can open, depending on its build.
_KNOWN = frozenset(("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs"))
#: Spark's names for the same storage.
_SAME = {"s3a": "s3", "s3n": "s3", "wasb": "abfs", "wasbs": "abfss"}
#: Start of a URI, for one that lacks two slashes and a host.
_BEGINNINGS = {
    "file": "file://",
    "hdfs": "hdfs://namenode:8020",
    "viewfs": "viewfs://cluster",
    "abfs": "abfs://container@account.dfs.core.windows.net",
    "abfss": "abfss://container@account.dfs.core.windows.net",
}
#: These URIs have the container's name, which is not secret, in the place of credentials.
_CONTAINER_FIRST = ("abfs", "abfss", "wasb", "wasbs")


def scheme_of(where: str) -> str | None:
    """Return the scheme of a text, as ``dbfs`` in ``dbfs:/x``; None for a path.

    A colon after a slash, as in ``./a:b``, belongs to a path.
    """
    found = _SCHEME.match(where)
    return found[1] if found else None


def local_path(uri: str) -> str:
    """Return the path of a ``file:`` URI of Spark's, which encodes spaces and other characters."""
    return "/" + unquote(uri.removeprefix("file:")).lstrip("/")


def literal(name: str) -> str:
    """Return a name or path as a glob that matches only it."""
    return "".join("\\" + c if c in "*?[]{}\\" else c for c in name)


def check_known(where: str) -> None:
    """Raise ConfigError for a URI without a known file system, with the correct spelling."""
    scheme = scheme_of(where)
    if scheme is None or scheme.startswith("fsspec+"):
        return
    rest = where[len(scheme) + 1 :]
    # Spark writes file:/x, and pyarrow reads it.
    if scheme in _KNOWN and rest.startswith("/" if scheme == "file" else "//"):
        return
    raise ConfigError(f"{without_credentials(where)!r} cannot be used: {_backup(where)}.")


def check_local(where: str, option: str) -> None:
    """Raise ConfigError for a URI if the option needs a folder on this machine."""
    if scheme_of(where) is not None:
        raise ConfigError(
            f"{option}={without_credentials(where)!r} is a URI, but must be the path of a folder "
            "on the local disk."
        )


def shown(where: str) -> str:
    """Return a path or a URI for people to read, without credentials."""
    scheme = scheme_of(where)
    if scheme is None:
        return where
    if not re.match(r"[^/]*//[^/]*@", where):
        return without_credentials(where)  # a key may contain a slash
    if scheme in _CONTAINER_FIRST:
        bare = re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1@", where)
    else:
        bare = re.sub(r"(?<=://)[^/@]*@", "", where)
    return bare.partition("?")[0]


def without_credentials(where: str) -> str:
    """Return a URI for people to read, even if its credentials prevent parsing."""
    scheme, colon, rest = where.partition(":")
    slashes = "//" if rest.startswith("//") else ""
    rest = rest[len(slashes) :]
    # A key that contains a slash ends after what looks like the host; a port is not a key.
    if re.match(r"[^/]*@|[^/:]*:(?!\d+(/|$))", rest):
        owner, at, rest = rest.rpartition("@")
        if at and scheme in _CONTAINER_FIRST:
            rest = f"{owner.partition(':')[0]}@{rest}"
    return f"{scheme}{colon}{slashes}{rest}".partition("?")[0]


def _backup(where: str) -> str:
    scheme, _, rest = without_credentials(where).partition(":")
    path = "/" + rest.lstrip("/")
    name = _SAME.get(scheme.lower(), scheme.lower())
    if name == "dbfs" and path.startswith("/Volumes/"):
        return f"write {path!r}, the path of the volume"
    if name == "dbfs":
        return (
            f"write '/dbfs{path}', the path under which Databricks mounts it, or better the path "
            "of a volume, '/Volumes/catalog/schema/volume/folder'"
        )
    if name in ("file", "local") and not rest.startswith("//"):
        return f"write the path, {rest!r}"
    if name in _KNOWN and rest.startswith("//"):
        return f"write '{name}:{rest.replace('.blob.core.', '.dfs.core.')}'"
    if name in _KNOWN:
        return f"write '{_BEGINNINGS.get(name, f'{name}:/')}{path}'"
    advice = (
        f"no file system is known by the name {scheme!r}. pyarrow opens s3://, gs://, abfss:// and "
        "hdfs:// URIs; for other storage give a mounted path, or a function that returns "
        "(pyarrow.fs.FileSystem, folder)"
    )
    if not rest.startswith("/"):
        advice += f"; for a folder of this name write './{where}'"
    return advice
