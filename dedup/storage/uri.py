"""Paths and URIs, with advice for URIs that pyarrow does not know."""

from __future__ import annotations

import re
from urllib.parse import unquote

from dedup.errors import ConfigError

#: At least two characters, because a drive letter of Windows is not a scheme.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
#: Schemes that `pyarrow.fs.FileSystem.from_uri` can open, depending on its build.
_KNOWN = frozenset(("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs"))
#: Spark's schemes, and pyarrow's schemes for the same storage.
_SAME = {"s3a": "s3", "s3n": "s3", "wasb": "abfs", "wasbs": "abfss"}
#: Schemes whose URIs begin with the container's name where other URIs have credentials. The name is
#: not secret.
_CONTAINER_FIRST = ("abfs", "abfss", "wasb", "wasbs")


def scheme_of(where: str) -> str | None:
    """Return the scheme of a text, such as ``dbfs`` in ``dbfs:/x``, or None for a path.

    A colon after a slash, as in ``./a:b``, belongs to a path.
    """
    match = _SCHEME.match(where)
    return match[1] if match else None


def local_path(uri: str) -> str:
    """Return the path in a ``file:`` URI of Spark, which encodes spaces and other characters."""
    return "/" + unquote(uri.removeprefix("file:")).lstrip("/")


def below(where: str, name: str) -> str:
    """Return the path or URI of `name` in a folder. The options of a URI stay at its end."""
    if scheme_of(where) is None:
        return f"{where}/{name}"
    folder, mark, options = where.partition("?")
    return f"{folder.rstrip('/')}/{name}{mark}{options}"


def literal(name: str) -> str:
    """Return a glob that matches only this name or path."""
    return "".join("\\" + c if c in "*?[]{}\\" else c for c in name)


def check_known(where: str) -> None:
    """Raise ConfigError, which says what to write, if pyarrow does not know the scheme."""
    scheme = scheme_of(where)
    if scheme is None or scheme in _KNOWN or scheme.startswith("fsspec+"):
        return
    plain = without_credentials(where)
    same = _SAME.get(scheme.lower(), scheme.lower())
    if same in _KNOWN:
        rest = plain[len(scheme) :].replace(".blob.core.", ".dfs.core.")
        advice = f"write {same + rest!r}"
    elif same == "dbfs":
        advice = (
            "write the path of a volume (/Volumes/catalog/schema/volume/folder), or the path under "
            "which Databricks mounts it (/dbfs/folder)"
        )
    else:
        advice = (
            f"no file system is known by the name {scheme!r}. pyarrow opens s3://, gs://, abfss:// "
            "and hdfs:// URIs; for other storage give a mounted path, or a function that returns "
            f"(pyarrow.fs.FileSystem, folder); for a folder of this name write './{plain}'"
        )
    raise ConfigError(f"{plain!r} cannot be used: {advice}.")


def check_local(where: str, option: str) -> None:
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
    """Return a URI without credentials, even if a URI parser cannot read it."""
    scheme, colon, rest = where.partition(":")
    slashes = "//" if rest.startswith("//") else ""
    rest = rest[len(slashes) :]
    # A key that contains a slash reaches past what looks like the host. A port is not a key.
    if re.match(r"[^/]*@|[^/:]*:(?!\d+(/|$))", rest):
        owner, at, rest = rest.rpartition("@")
        if at and scheme in _CONTAINER_FIRST:
            rest = f"{owner.partition(':')[0]}@{rest}"
    return f"{scheme}{colon}{slashes}{rest}".partition("?")[0]
