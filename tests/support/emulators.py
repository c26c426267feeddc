"""Object stores on this machine, on loopback only: two emulators, and a gateway for S3.

Azurite is a program of npm, gcp-storage-emulator one of PyPI, and versitygw one in Go. Tests are
skipped without them.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from dedup.tools.check.machine_probe import connect
from tests.support.object_store import BUCKET, REGION, iceberg_properties, s3_factory
from tests.support.processes import START_TIMEOUT_S, Daemon
from tests.support.waiting import wait_until

CONTAINER = BUCKET
_PORT = "<port>"
#: The account that Azurite has, as its documentation says.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

#: What a user gives as catalog.
Factory = Callable[[], tuple[pafs.FileSystem, str]]


@dataclass(frozen=True)
class Emulator(ABC):
    """An emulator that listens at ``host:port``."""

    address: str

    @abstractmethod
    def __call__(self, folder: str) -> Factory:
        """What gives a folder of the container to a user's executors, which lack this module."""

    @property
    @abstractmethod
    def iceberg(self) -> dict[str, str]:
        """How pyiceberg reaches the container: properties of a catalog."""


@dataclass(frozen=True)
class Azure(Emulator):
    key: str = KEY

    def __call__(self, folder: str) -> Factory:
        address, key, account, container = self.address, self.key, ACCOUNT, CONTAINER

        def catalog() -> tuple[pafs.FileSystem, str]:
            import pyarrow.fs

            made = pyarrow.fs.AzureFileSystem(
                account_name=account, account_key=key,
                blob_storage_authority=address, dfs_storage_authority=address,
                blob_storage_scheme="http", dfs_storage_scheme="http",
            )  # fmt: skip
            return made, f"{container}/{folder}"

        return catalog

    @property
    def iceberg(self) -> dict[str, str]:
        return {
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            "warehouse": f"abfss://{CONTAINER}/lake",
            "adls.account-name": ACCOUNT,
            "adls.account-key": self.key,
            "adls.blob-storage-authority": self.address,
            "adls.dfs-storage-authority": self.address,
            "adls.blob-storage-scheme": "http",
            "adls.dfs-storage-scheme": "http",
        }


@dataclass(frozen=True)
class Google(Emulator):
    def __call__(self, folder: str) -> Factory:
        address, container = self.address, CONTAINER

        def catalog() -> tuple[pafs.FileSystem, str]:
            import pyarrow.fs

            made = pyarrow.fs.GcsFileSystem(
                anonymous=True, scheme="http", endpoint_override=address
            )
            return made, f"{container}/{folder}"

        return catalog

    @property
    def iceberg(self) -> dict[str, str]:
        return {
            "warehouse": f"gs://{CONTAINER}/lake",
            "gcs.service.host": f"http://{self.address}",
            "gcs.oauth2.token": "any",
            "gcs.oauth2.token-expires-at": "4102444800000",
        }


@dataclass(frozen=True)
class Gateway(Emulator):
    """A server of S3 over a local folder, with the key and the secret of the other S3 store."""

    def __call__(self, folder: str) -> Factory:
        return s3_factory(self.address, folder)

    @property
    def iceberg(self) -> dict[str, str]:
        return {"warehouse": f"s3://{CONTAINER}/lake", **iceberg_properties(self.address)}


@contextmanager
def running_azure(folder: Path) -> Iterator[Emulator]:
    """Azurite with a container, gone at the end in any case."""
    options = ("--blobHost=127.0.0.1", f"--blobPort={_PORT}", "--skipApiVersionCheck")
    more = ("--disableTelemetry", "--location", folder)
    with _running("azurite-blob", "npm install -g azurite", folder, *options, *more) as at:
        azure = Azure(at)
        azure("")()[0].create_dir(CONTAINER)
        yield azure


@contextmanager
def running_google(folder: Path) -> Iterator[Emulator]:
    options = ("--host=127.0.0.1", f"--port={_PORT}", f"--default-bucket={CONTAINER}")
    program, how = "gcp-storage-emulator", "pip install gcp-storage-emulator"
    with _running(program, how, folder, "start", "--in-memory", *options) as at:
        yield Google(at)


@contextmanager
def running_gateway(folder: Path) -> Iterator[Emulator]:
    (folder / "buckets" / CONTAINER).mkdir(parents=True)
    how = "go install github.com/versity/versitygw/cmd/versitygw@latest"
    options = (f"--port=127.0.0.1:{_PORT}", "--access=any", "--secret=any", f"--region={REGION}")
    more = ("posix", folder / "buckets")
    with _running("versitygw", how, folder, *options, *more) as at:
        yield Gateway(at)


EMULATORS = {"azure": running_azure, "google": running_google, "s3": running_gateway}


@contextmanager
def _running(program: str, how: str, folder: Path, *options: object) -> Iterator[str]:
    """The address of a program that runs with these options. `_PORT` in them is its port."""
    path = shutil.which(program, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"needs {program} ({how})")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [path, *(str(option).replace(_PORT, port) for option in options)]
    daemon = Daemon.start(command, folder / "log", os.environ)
    try:
        address = f"127.0.0.1:{port}"
        assert wait_until(lambda: _listens(address), START_TIMEOUT_S), daemon.log.read_text()
        yield address
    finally:
        daemon.kill()


def _listens(address: str) -> bool:
    try:
        connect(address)
    except OSError:
        return False
    return True
