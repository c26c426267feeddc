"""Emulators of Azure Blob Storage and Google Cloud Storage on this machine, on loopback only.

Azurite is a program of npm, and gcp-storage-emulator one of PyPI. Tests are skipped without them.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from dedup.tools.check.machine_probe import connect
from tests.support.processes import START_TIMEOUT_S, Daemon
from tests.support.waiting import wait_until

CONTAINER = "catalogs"
#: The account that Azurite has, as its documentation says.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

#: What a user gives as catalog, for a folder of the container.
Factories = Callable[[str], Callable[[], tuple[pafs.FileSystem, str]]]


def azure_factories(address: str, key: str = KEY) -> Factories:
    """They travel by value, because executors do not have this module."""
    account, container = ACCOUNT, CONTAINER

    def of(folder: str) -> Callable[[], tuple[pafs.FileSystem, str]]:
        def catalog() -> tuple[pafs.FileSystem, str]:
            import pyarrow.fs

            made = pyarrow.fs.AzureFileSystem(
                account_name=account, account_key=key,
                blob_storage_authority=address, dfs_storage_authority=address,
                blob_storage_scheme="http", dfs_storage_scheme="http",
            )  # fmt: skip
            return made, f"{container}/{folder}"

        return catalog

    return of


def google_factories(address: str) -> Factories:
    container = CONTAINER

    def of(folder: str) -> Callable[[], tuple[pafs.FileSystem, str]]:
        def catalog() -> tuple[pafs.FileSystem, str]:
            import pyarrow.fs

            made = pyarrow.fs.GcsFileSystem(
                anonymous=True, scheme="http", endpoint_override=address
            )
            return made, f"{container}/{folder}"

        return catalog

    return of


@contextmanager
def running_azure(folder: Path) -> Iterator[Factories]:
    """Azurite with a container, gone at the end in any case."""
    options = (
        "--blobHost=127.0.0.1",
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--location",
        folder,
    )
    with _running(
        "azurite-blob", "npm install -g azurite", folder, *options, port="--blobPort"
    ) as at:
        factories = azure_factories(at)
        factories("")()[0].create_dir(CONTAINER)
        yield factories


@contextmanager
def running_google(folder: Path) -> Iterator[Factories]:
    options = ("start", "--host=127.0.0.1", "--in-memory", f"--default-bucket={CONTAINER}")
    program, how = "gcp-storage-emulator", "pip install gcp-storage-emulator"
    with _running(program, how, folder, *options, port="--port") as at:
        yield google_factories(at)


@contextmanager
def _running(program: str, how: str, folder: Path, *options: object, port: str) -> Iterator[str]:
    path = shutil.which(program, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"needs {program} ({how})")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    daemon = Daemon.start([path, *options, f"{port}={number}"], folder / "log", os.environ)
    try:
        address = f"127.0.0.1:{number}"
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
