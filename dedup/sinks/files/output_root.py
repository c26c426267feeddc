"""The root of an output. If several writers create the same file, exactly one succeeds."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from dedup.errors import CatalogError, ConfigError
from dedup.errors.lazy import library
from dedup.storage.root import Root
from dedup.storage.uri import scheme_of

#: Number of attempts to create an object. A store answers 409 to simultaneous writes of one name.
_TRIES = 5
#: The object that the sink creates on S3 to test whether the store respects conditional writes.
_PROBE = "_dedup.probe"


class OutputRoot(Root):
    """A `Root` at a path or an ``s3://`` URI. Even on S3 `create_bytes` never overwrites an object.

    For S3 this uses boto3, because pyarrow has no conditional PUT (``If-None-Match: *``, which S3
    supports since August 2024).
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._uri = path if scheme_of(path) == "s3" else None

    def check_exclusive(self) -> None:
        """Raise ConfigError if the store ignores the condition of a conditional write.

        Raises MissingExtraError if the extra ``s3``, which S3 needs, is not installed.
        """
        if self._uri is None or (self._uri, os.getpid()) in _EXCLUSIVE:
            return
        if self._put_new(_PROBE, b"first") and self._put_new(_PROBE, b"second"):
            raise ConfigError(
                f"The store of {self.url()} takes conditional writes (PUT with If-None-Match: *) "
                "and ignores the condition: it replaced an existing object. Two starts of a query, "
                "or two queries, could overwrite each other's decisions there. Write to a store "
                "that respects the condition (Amazon S3, a newer release of this store), or to a "
                "folder that all machines mount."
            )
        _EXCLUSIVE.add((self._uri, os.getpid()))

    def uri(self, name: str) -> str:
        """Return the path of a file, or the URI of an object, without percent-encoding.

        Spark, DuckDB, and pyarrow with a file system expect this form. The URI that the user gave
        may be percent-encoded, because pyarrow decodes that URI.
        """
        if self._uri is None:
            return self.url(name)
        bucket, folder, _ = parsed_s3(self._uri)
        return "s3://" + "/".join(part for part in (bucket, folder, name) if part)

    def create_bytes(self, name: str, data: bytes) -> bool:
        if self._uri is None:
            return super().create_bytes(name, data)
        # boto3 repeats a request whose answer was lost, so this call may have made the object.
        return self._put_new(name, data) or self.read_bytes(name) == data

    def _put_new(self, name: str, data: bytes) -> bool:
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
            f"Cannot write {self.url(name)}: {error}. Check that the store can be reached, "
            "supports conditional writes (If-None-Match), and lets these credentials write. Then "
            "start the query again.",
            remedy="storage",
        )


#: Outputs whose store has passed `check_exclusive`, each with the ID of the process that checked.
_EXCLUSIVE: set[tuple[str, int]] = set()


@lru_cache(maxsize=8)
def _client(uri: str, pid: int) -> Any:
    """Return this process's S3 client. The cache saves time: making a client is slow."""
    boto3, _ = _boto3()
    return boto3.session.Session().client("s3", **parsed_s3(uri)[2])


def _boto3() -> tuple[Any, Any]:
    purpose = "Writing files to S3"
    boto3 = library("s3", purpose, "boto3", "boto3.session")
    return boto3, library("s3", purpose, "botocore", "botocore.exceptions")


def parsed_s3(uri: str) -> tuple[str, str, dict[str, Any]]:
    """Return the bucket and folder of a URI, and settings that make boto3 act as pyarrow does.

    If the URI lacks a setting, both libraries read it from the environment, the profile or the
    machine.
    """
    parts = urlsplit(uri)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    settings: dict[str, Any] = {}
    if "region" in query:
        settings["region_name"] = query["region"]
    if "endpoint_override" in query:
        settings["endpoint_url"] = f"{query.get('scheme', 'https')}://{query['endpoint_override']}"
    if parts.username is not None:
        settings["aws_access_key_id"] = unquote(parts.username)
        settings["aws_secret_access_key"] = unquote(parts.password or "")
    return parts.netloc.rpartition("@")[2], unquote(parts.path).strip("/"), settings
