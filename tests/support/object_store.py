"""An S3-compatible store on this machine: moto's server, with users whose rights can change."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from tests.support.processes import Daemon

REGION = "us-east-1"
BUCKET = "catalogs"
CALL_TIMEOUT_S = 10.0
_EVERYTHING = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}


@dataclass
class ObjectStore:
    """Where it listens, as ``host:port``; who may change rights while they are enforced."""

    endpoint: str
    admin: tuple[str, str] = ("any", "any")

    def uri(self, folder: str, key: tuple[str, str] = ("any", "any")) -> str:
        """What a user would give as catalog."""
        return (
            f"s3://{key[0]}:{key[1]}@{BUCKET}/{folder}"
            f"?endpoint_override={self.endpoint}&scheme=http&region={REGION}"
        )

    def file_system(self, key: tuple[str, str] = ("any", "any")) -> pafs.S3FileSystem:
        return open_s3(self.endpoint, *key)

    @contextmanager
    def enforced_rights(self) -> Iterator[None]:
        """From here on only users of this store may do what their policies allow."""
        self.admin = self.add_user(f"admin-{time.time_ns()}")
        self._post("reset-auth", b"0")
        try:
            yield
        finally:
            self._post("reset-auth", b"inf")
            self.admin = ("any", "any")

    def add_user(self, name: str) -> tuple[str, str]:
        """A user who may do everything; the access key and its secret."""
        iam = client("iam", self.endpoint, self.admin)
        iam.create_user(UserName=name)
        self.allow(name)
        made = iam.create_access_key(UserName=name)["AccessKey"]
        return made["AccessKeyId"], made["SecretAccessKey"]

    def allow(self, name: str) -> None:
        client("iam", self.endpoint, self.admin).put_user_policy(
            UserName=name, PolicyName="everything", PolicyDocument=json.dumps(_EVERYTHING)
        )

    def forbid(self, name: str) -> None:
        client("iam", self.endpoint, self.admin).delete_user_policy(
            UserName=name, PolicyName="everything"
        )

    def _post(self, what: str, data: bytes) -> None:
        url = f"http://{self.endpoint}/moto-api/{what}"
        request = urllib.request.Request(url, data, {"Content-Type": "text/plain"}, method="POST")
        urllib.request.urlopen(request, timeout=CALL_TIMEOUT_S).read()


def iceberg_properties(endpoint: str) -> dict[str, str]:
    """How pyiceberg reaches a store: properties of a catalog."""
    return {
        "s3.endpoint": f"http://{endpoint}",
        "s3.access-key-id": "any",
        "s3.secret-access-key": "any",
        "s3.region": REGION,
    }


# A client takes half a second to make.
@cache
def client(service: str, endpoint: str, key: tuple[str, str] = ("any", "any")) -> Any:
    import boto3

    return boto3.client(
        service, endpoint_url=f"http://{endpoint}", region_name=REGION,
        aws_access_key_id=key[0], aws_secret_access_key=key[1],
    )  # fmt: skip


def open_s3(
    endpoint: str,
    access_key: str = "any",
    secret_key: str = "any",
    *,
    attempts: int = 3,
    timeout_s: float = CALL_TIMEOUT_S,
) -> pafs.S3FileSystem:
    return pafs.S3FileSystem(
        access_key=access_key, secret_key=secret_key, endpoint_override=endpoint, scheme="http",
        region=REGION, connect_timeout=timeout_s, request_timeout=timeout_s,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=attempts),
    )  # fmt: skip


def s3_factory(
    endpoint: str,
    folder: str,
    secrets: str | None = None,
    calls: str | None = None,
    attempts: int = 3,
) -> Callable[[], tuple[pafs.FileSystem, str]]:
    """What a user gives as catalog; it reads `secrets` again each time, and notes that in `calls`.

    It travels by value, because executors do not have this module.
    """
    bucket, region, timeout_s = BUCKET, REGION, CALL_TIMEOUT_S

    def catalog() -> tuple[pafs.FileSystem, str]:
        import os
        from pathlib import Path

        import pyarrow.fs

        access_key, secret_key = "any", "any"
        if secrets is not None:
            access_key, secret_key = Path(secrets).read_text().split()
        if calls is not None:
            Path(calls, f"{os.getpid()}-{os.urandom(4).hex()}").write_text(access_key)
        made = pyarrow.fs.S3FileSystem(
            access_key=access_key, secret_key=secret_key, endpoint_override=endpoint,
            scheme="http", region=region, connect_timeout=timeout_s, request_timeout=timeout_s,
            retry_strategy=pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=attempts),
        )  # fmt: skip
        return made, f"{bucket}/{folder}"

    return catalog


@contextmanager
def running_store(log: Path) -> Iterator[ObjectStore]:
    """A store with one bucket and no rights, gone at the end in any case."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    server = Daemon.start(command, log, os.environ)
    try:
        endpoint = server.wait_for(r"Running on http://(\S+)")[1]
        client("s3", endpoint).create_bucket(Bucket=BUCKET)
        yield ObjectStore(endpoint)
    finally:
        server.kill()
