"""`DedupListener` without a session: what it refuses, and whom a failing log does not reach."""

from __future__ import annotations

import logging
import pickle
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from dedup import DedupListener
from dedup.core.metrics import BatchMetrics
from dedup.core.sequence_metrics import AnyMetrics, SequenceMetrics
from dedup.errors import ConfigError
from dedup.tools.watch import listener as listener_module
from tests.support.batch_metrics import QUERY, RUN, batch, sequence_batch


def progress(found: AnyMetrics) -> SimpleNamespace:
    """What Spark reports of a micro-batch."""
    return SimpleNamespace(
        id=found.query_id, runId=found.run_id, name=found.query_name, batchId=found.batch_id,
        found=found,
    )  # fmt: skip


@pytest.mark.parametrize(("port", "address"), [(70_000, "0.0.0.0"), (9464.0, ""), (0, 5)])
def test_an_invalid_port_or_address_is_rejected(port: object, address: object) -> None:
    with pytest.raises(ConfigError, match=r"prometheus_port=.*Give another port, or an address"):
        DedupListener(prometheus_port=port, prometheus_address=address)  # type: ignore[arg-type]


def test_the_endpoint_is_bound_to_the_given_address() -> None:
    def is_elsewhere_too() -> bool:
        listener = DedupListener(prometheus_port=0, prometheus_address="127.0.0.2")
        port = listener.prometheus_port
        assert port
        socket.create_connection(("127.0.0.2", port)).close()
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return False
        return True

    # Another process may have the same port at the other address, but hardly three times.
    assert not all(is_elsewhere_too() for _ in range(3))


@pytest.mark.parametrize(
    "log", ["s3://bucket/metrics", "file:///tmp/x", "dbfs:/x", Path("s3://b"), "", b"x", 5]
)
def test_a_log_that_is_not_a_local_folder_is_rejected(
    log: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^log=.* is not a folder on this machine's disk. Give "):
        DedupListener(log=log)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_tilde_in_the_log_folder_means_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    DedupListener(log="~/metrics")
    assert [path.name for path in tmp_path.iterdir()] == ["metrics"]
    with pytest.raises(ConfigError, match="give a path without '~'"):
        DedupListener(log="~no-such-user/metrics")


def test_a_failing_log_does_not_keep_metrics_from_the_callback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[BatchMetrics] = []
    listener = DedupListener(heard.append, log=tmp_path)

    def fail(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("batch", "event"):
        monkeypatch.setattr(listener._runs._log, name, fail)
    monkeypatch.setattr(listener_module, "from_progress", lambda progress, name: progress.found)
    event = SimpleNamespace(id=QUERY, runId=RUN, exception=None, progress=progress(batch(0)))
    listener.onQueryStarted(event)  # type: ignore[arg-type]
    listener.onQueryProgress(event)  # type: ignore[arg-type]
    listener.onQueryIdle(event)  # type: ignore[arg-type]
    listener.onQueryTerminated(event)  # type: ignore[arg-type]
    assert heard == [batch(0)]
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert "DedupListener could not record micro-batch 0" in told
    assert all(message.startswith("DedupListener could not") for message in told)


def test_numbered_records_are_handed_to_their_own_callback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[SequenceMetrics] = []
    listener = DedupListener(lambda batch: pytest.fail("it has no IDs"), on_sequences=heard.append)
    monkeypatch.setattr(listener_module, "from_progress", lambda progress, name: None)
    monkeypatch.setattr(
        listener_module, "sequences_from_progress", lambda progress, name: progress.found
    )
    for number in (0, 0, 1, 1):
        event = SimpleNamespace(progress=progress(sequence_batch(number, epochs_apart=number)))
        listener.onQueryProgress(event)  # type: ignore[arg-type]
    assert [one.batch_id for one in heard] == [0, 1]
    assert {r.levelno for r in caplog.records} == {logging.ERROR}
    assert "damaged-state" in caplog.text
    (watched,) = listener.watched()
    assert watched.of_sequences == heard


def test_a_new_checkpoint_beside_another_query_is_logged_as_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = DedupListener(lambda told: None)
    monkeypatch.setattr(listener_module, "from_progress", lambda progress, name: progress.found)
    for number, others in ((0, 1), (1, 0)):
        event = SimpleNamespace(progress=progress(batch(number, other_queries=others)))
        listener.onQueryProgress(event)  # type: ignore[arg-type]
    (warned,) = caplog.records
    assert warned.levelno == logging.WARNING
    assert warned.getMessage().startswith("query orders starts with a new checkpoint, and its ")
    assert "`dedup catalog adopt`" in warned.getMessage()


def test_what_executors_lack_is_logged_once_a_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = DedupListener(lambda told: None)
    monkeypatch.setattr(listener_module, "from_progress", lambda progress, name: progress.found)
    lacks = {"shards": 4, "shards_without_kernel": 4, "shards_without_files": 1}
    for number, changes in enumerate(({}, lacks, lacks)):
        event = SimpleNamespace(progress=progress(batch(number, **changes)))
        listener.onQueryProgress(event)  # type: ignore[arg-type]
    messages = [record.getMessage() for record in caplog.records]
    assert [message[:60] for message in messages] == [
        "query orders is slower than it could be: in micro-batch 1 nu",
        "query orders is slower than it could be: in micro-batch 1 th",
    ]
    assert "numpy judged 4 of 4 shards, because executors lack the C kernel" in messages[0]
    assert "the rows of 1 of 4 shards went through Spark" in messages[1]


def test_a_listener_that_spark_would_send_to_a_server_is_refused() -> None:
    """So does Spark Connect of PySpark 3.5."""
    with pytest.raises(ConfigError, match=r"Spark Connect of PySpark 3\.5 would run DedupListener"):
        pickle.dumps(DedupListener())
