"""A storage that does not answer is waited for with a word, for a while, and until Ctrl-C."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedup.errors import CatalogError
from dedup.storage import timeouts as contact
from dedup.storage.root import Root
from dedup.storage.timeouts import is_waiting, reach


@pytest.fixture
def silent() -> Iterator[tuple[socket.socket, str]]:
    """An S3 store that takes connections and never answers, and a catalog in it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        place = f"127.0.0.1:{server.getsockname()[1]}"
        yield server, f"s3://k:s@bucket/x?endpoint_override={place}&scheme=http&region=r"


def test_reach_returns_the_answer_or_raises_the_error_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = Root(tmp_path)
    root.put_bytes("q", b"x")
    assert reach(root, lambda: root.read_bytes("q")) == b"x"
    with pytest.raises(CatalogError, match="it does not exist"):
        reach(root, lambda: root.read_bytes("none"))
    assert not caplog.records
    assert not is_waiting()


def test_storage_that_does_not_answer_is_given_up_after_the_deadline(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact, "_given_up", [])
    never = threading.Event()
    with pytest.raises(CatalogError) as raised:
        reach(Root("gs://bucket/x"), never.wait, deadline_s=0.02, warn_after_s=0.01)
    assert raised.value.text == (
        "gs://bucket/x has not answered within 0.02 seconds. Check its name, the network and the "
        "credentials, then start again."
    )
    assert raised.value.remedy == "storage"
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    assert told.getMessage() == "dedup waits for gs://bucket/x to answer, for 0.02 s at most"
    assert is_waiting()
    never.set()
    contact._given_up[0].join()
    assert not is_waiting()


def test_a_catalog_function_that_does_not_return_is_given_up_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contact, "_given_up", [])
    never = threading.Event()
    root = Root(never.wait)  # type: ignore[arg-type]
    with pytest.raises(CatalogError, match=r"^the function given as catalog has not answered"):
        reach(root, lambda: None, deadline_s=0.02, warn_after_s=0.01)
    never.set()


def test_ctrl_c_ends_a_command_that_waits(silent: tuple[socket.socket, str]) -> None:
    """The client itself tries for a hundred seconds and delays Python's exit for as long."""
    server, where = silent
    with subprocess.Popen(
        [sys.executable, "-m", "dedup.cli.main", "catalog", "inspect", where, "--json"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        server.accept()
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, '{"exit_code": 130, "status": "interrupted"}\n')


def test_a_second_ctrl_c_ends_a_program_that_waits(silent: tuple[socket.socket, str]) -> None:
    """Even if another Ctrl-C came just as Python began to exit."""
    server, where = silent
    program = (
        "import atexit, ctypes, sys\n"
        "from dedup.storage.timeouts import reach\n"
        "from dedup.storage.root import Root\n"
        "root = Root(sys.argv[1])\n"
        "try:\n"
        "    reach(root, lambda: root.exists('q'))\n"
        "except KeyboardInterrupt:\n"
        "    atexit.register(ctypes.pythonapi.PyErr_SetInterrupt)\n"
        "    print('interrupted', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, where],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        server.accept()
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "interrupted\n"
        for _ in range(60):
            process.send_signal(signal.SIGINT)
            try:
                process.wait(1)
                break
            except subprocess.TimeoutExpired:
                continue
        assert process.returncode is not None
        process.kill()
