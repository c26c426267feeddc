"""Credentials that an object store refuses: at once, or from some moment on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.driver_process import DriverProcess, as_run, give
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.oracle import Oracle
from tests.support.small_state import HORIZON_S, LATENESS_S, OPTIONS, tables


@pytest.mark.parametrize("how", ["factory", "URI"])
def test_wrong_credentials_are_refused_before_the_query_starts(
    store: ObjectStore, driver: DriverProcess, tmp_path: Path, how: str
) -> None:
    give(tmp_path, tables(1))
    calls = tmp_path / "calls"
    calls.mkdir()
    secrets = tmp_path / "secrets"
    secrets.write_text("AKIAWRONG very-secret-indeed")
    catalog = {
        "factory": {
            "s3": {
                "endpoint": store.endpoint, "folder": "refused",
                "secrets": str(secrets), "calls": str(calls),
            }
        },
        "URI": {"path": store.uri("refused", ("AKIAWRONG", "very-secret-indeed"))},
    }[how]  # fmt: skip
    with store.enforced_rights():
        answer = driver.ask("stream", folder=str(tmp_path), options=OPTIONS, catalog=catalog)
    assert answer["kind"] == "CatalogError"
    assert f"{BUCKET}/refused cannot be written" in answer["error"]
    assert "INVALID_ACCESS_KEY_ID" in answer["error"], "the store's own word"
    assert "may be read and written by this user or with these credentials" in answer["error"]
    assert "very-secret-indeed" not in answer["error"]
    assert not (tmp_path / "checkpoint").exists()
    # Credentials may have run out: a function is asked for others once.
    assert len(list(calls.iterdir())) == (2 if how == "factory" else 0)


def test_credentials_that_change_and_then_stop_working(
    store: ObjectStore, driver: DriverProcess, tmp_path: Path
) -> None:
    given = tables(5)
    give(tmp_path, given)
    calls = tmp_path / "calls"
    calls.mkdir()
    secrets = tmp_path / "secrets"
    catalog = {
        "s3": {
            "endpoint": store.endpoint, "folder": "rotated",
            "secrets": str(secrets), "calls": str(calls),
        }
    }  # fmt: skip
    with store.enforced_rights():
        first = store.add_user("first")
        secrets.write_text(" ".join(first))

        def rotate() -> None:
            secrets.write_text(" ".join(store.add_user("second")))
            store.forbid("first")

        answer = driver.ask(
            "stream",
            rotate,
            lambda: store.forbid("second"),
            folder=str(tmp_path),
            options=OPTIONS,
            catalog=catalog,
            pause_after=[0, 2],
        )
        assert answer["kind"] == "StreamingQueryException"
        assert "dedup.errors.CatalogError: cannot " in answer["error"]
        assert f"s3://{BUCKET}/rotated/" in answer["error"]
        assert "ACCESS_DENIED" in answer["error"]
        assert "with these credentials, then start the query again" in answer["error"]
        assert first[1] not in answer["error"]
        assert len(answer["rows"]) == 3, "two micro-batches after the first key was refused"
        keys = [path.read_text() for path in calls.iterdir()]
        assert first[0] in keys
        assert set(keys) != {first[0]}, "the function was asked again"
        # Once by the driver; on executors by each process, not by each task.
        before = sorted(
            path.name.partition("-")[0] for path in calls.iterdir() if path.read_text() == first[0]
        )
        assert before == sorted(set(before))

        store.allow("second")
        again = driver.ask("stream", folder=str(tmp_path), options=OPTIONS, catalog=catalog)
    run = as_run(again)
    assert sorted(run.rows) == [3, 4]
    run.rows |= dict(enumerate(answer["rows"]))
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
