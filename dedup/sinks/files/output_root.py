"""The folder of an output, in which a file can be created by one of several at a time."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from dedup.catalog.root import Root
from dedup.catalog.uri import scheme_of
from dedup.errors import CatalogError, ConfigError, MissingExtraError

#: A store that is asked for the same name by two at a time answers 409: ask again.
_TRIES = 5
#: Lies in an output on S3, and shows that the store heeds conditional writes.
_PROBE = "_dedup.probe"


class OutputRoot(Root):
    """A `Root` whose `create_bytes` is exclusive on S3 as well.

    pyarrow has no conditional PUT, so that one goes by boto3 (``If-None-Match: *``, which S3 has
    since August 2024).

    Parameters
    ----------
    path : str
        An absolute path, or an ``s3://`` URI.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._uri = path if scheme_of(path) == "s3" else None

    def check(self) -> None:
        """Look whether the output can be reached, and created in.

        Raises
        ------
        MissingExtraError
            If it is on S3, and the extra ``s3`` is not installed.
        CatalogError
            If the storage does not answer, or refuses.
        """
        if self._uri is not None:
            _boto3()
        self.exists("_dedup.query")

    def check_exclusive(self) -> None:
        """Look whether the store refuses to create what is there, by creating something twice.

        Raises
        ------
        ConfigError
            If it does not, so that of two starts both would decide.
        CatalogError
            If the storage does not answer, or refuses.
        """
        if self._uri is None or (self._uri, os.getpid()) in _EXCLUSIVE:
            return
        if self._put_new(_PROBE, b"first") and self._put_new(_PROBE, b"second"):
            raise ConfigError(
                f"The store of {self.url()} takes conditional writes (PUT with If-None-Match: *) "
                "and does not heed them: it replaced an object that was there. Two starts of a "
                "query, or two queries, would overwrite what the other has decided there. Write "
                "to a store that has them (Amazon S3, a newer release of this one), or to a folder "
                "that all machines mount."
            )
        _EXCLUSIVE.add((self._uri, os.getpid()))

    def uri(self, name: str) -> str:
        """Return the path of a file, or the URI of an object, whose key stands there as it is.

        Readers take it so (Spark, DuckDB, pyarrow with a file system), other than the URI of the
        output, which pyarrow decodes.
        """
        if self._uri is None:
            return self.url(name)
        bucket, folder, _ = parsed_s3(self._uri)
        return "s3://" + "/".join(part for part in (bucket, folder, name) if part)

    def create_bytes(self, name: str, data: bytes) -> bool:
        """Write an object that is not there yet; return False, writing nothing, where it is.

        Raises
        ------
        CatalogError
            When the storage cannot be reached or refuses.
        """
        if self._uri is None:
            return super().create_bytes(name, data)
        # An answer that was lost is asked for again: what is there may be our own.
        return self._put_new(name, data) or self.read_bytes(name) == data

    def _put_new(self, name: str, data: bytes) -> bool:
        """Return whether the store has taken an object, and not refused it because one is there."""
        assert self._uri is not None
        _, botocore = _boto3()
        bucket, folder, _ = parsed_s3(self._uri)
        client = _client(self._uri, os.getpid())
        key = f"{folder}/{name}" if folder else name
        for attempt in range(_TRIES):
            try:
                client.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
            except botocore.exceptions.ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                if status == 409 and attempt + 1 < _TRIES:
                    time.sleep(0.2)
                    continue
                if status == 412:
                    return False
                raise self._refused(name, error) from error
            except botocore.exceptions.BotoCoreError as error:
                raise self._refused(name, error) from error
            return True
        raise AssertionError("the last attempt returns or raises")

    def _refused(self, name: str, error: Exception) -> CatalogError:
        return CatalogError(
            f"cannot write {self.url(name)}: {error}; check that the store is reachable, knows "
            "conditional writes (If-None-Match), and may be written with these credentials, then "
            "start the query again",
            remedy="storage",
        )


#: Outputs, by process, whose store has shown that it heeds them: a micro-batch does not ask again.
_EXCLUSIVE: set[tuple[str, int]] = set()


@lru_cache(maxsize=8)
def _client(uri: str, pid: int) -> Any:
    """Return a client of this process; to make one takes longer than to ask it."""
    boto3, _ = _boto3()
    return boto3.session.Session().client("s3", **parsed_s3(uri)[2])


def _boto3() -> tuple[Any, Any]:
    try:
        import boto3.session
        import botocore.exceptions
    except ImportError:
        raise MissingExtraError("s3", "Writing files to S3") from None
    return boto3, botocore


def parsed_s3(uri: str) -> tuple[str, str, dict[str, Any]]:
    """Return bucket, folder, and the settings of a client that mean what the URI means to pyarrow.

    What the URI does not say both take from the environment, profile or machine.
    """
    parts = urlsplit(uri)
    asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    settings: dict[str, Any] = {}
    if "region" in asked:
        settings["region_name"] = asked["region"]
    if "endpoint_override" in asked:
        settings["endpoint_url"] = f"{asked.get('scheme', 'https')}://{asked['endpoint_override']}"
    if parts.username is not None:
        settings["aws_access_key_id"] = unquote(parts.username)
        settings["aws_secret_access_key"] = unquote(parts.password or "")
    return parts.netloc.rpartition("@")[2], unquote(parts.path).strip("/"), settings
