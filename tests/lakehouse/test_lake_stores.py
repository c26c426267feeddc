"""Tables on object stores: the same commits, refused where another one came first."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dedup.errors import ConfigError, SinkError
from dedup.sinks.lakehouse.options import DELTA, ICEBERG, lake_options
from tests.lakehouse.lakes import Lake, Sink, at_point, once
from tests.support.emulators import EMULATORS, Emulator
from tests.support.object_store import (
    BUCKET,
    REGION,
    ObjectStore,
    iceberg_properties,
    running_store,
)


class StoredLake(Lake):
    """Tables below a folder of a bucket, with a catalog on the local disk."""

    def __init__(self, format_name: str, folder: Path, store: ObjectStore) -> None:
        super().__init__(format_name, folder)
        self.url, self.endpoint = f"s3://{BUCKET}/{folder.parent.name}", store.endpoint

    @property
    def catalog(self) -> dict[str, str]:
        return super().catalog | {"warehouse": self.url, **iceberg_properties(self.endpoint)}

    def options(self, table: str = "numbers") -> dict[str, str]:
        return super().options(table) | (
            {"path": f"{self.url}/{table}"} if self.format == DELTA else {}
        )

    def found(self, table: str = "numbers") -> Counter[int]:
        if self.format == ICEBERG:
            return super().found(table)
        from deltalake import DeltaTable, QueryBuilder

        query = QueryBuilder().register("t", DeltaTable(f"{self.url}/{table}"))
        return Counter(query.execute("SELECT n FROM t").read_all()["n"].to_pylist())


def in_environment(monkeypatch: pytest.MonkeyPatch, store: ObjectStore) -> None:
    """Let libraries find the store."""
    settings: dict[str, Any] = {
        "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": f"http://{store.endpoint}", "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def test_data_files_in_another_store_than_the_commits_are_detected(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment gives executors another endpoint than the driver."""
    with running_store(tmp_path / "log") as another:
        in_environment(monkeypatch, store)
        lake = StoredLake(DELTA, tmp_path / "lake", store)
        sink = Sink(lake, tmp_path / "checkpoint")
        in_environment(monkeypatch, another)
        answers = sink.tasks("run1", 0, range(10))
        in_environment(monkeypatch, store)
        with pytest.raises(SinkError, match="is gone or changed before it was committed"):
            sink.work.complete(answers)
        sink.batch("run2", 0, range(10))
        assert lake.found() == once(10)


@pytest.mark.parametrize("format_name", [DELTA, ICEBERG])
def test_tables_on_an_object_store_have_each_row_once(
    format_name: str, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_environment(monkeypatch, store)
    each_row_comes_once(StoredLake(format_name, tmp_path / "lake", store), tmp_path)


def each_row_comes_once(lake: Lake, folder: Path) -> None:
    sink, copy = Sink(lake, folder / "checkpoint"), Sink(lake, folder / "copy")
    sink.batch("run1", 0, range(5), range(5, 10))
    sink.batch("run2", 0, range(10))
    with at_point("lakehouse.commit.before", lambda: copy.batch("run3", 1, range(10, 20))):
        sink.batch("run2", 1, range(10, 20))
    with pytest.raises(SinkError, match="gives other rows"):
        sink.batch("run4", 1, range(11, 20))
    assert lake.found() == once(20)


class EmulatedLake(Lake):
    """Iceberg's tables on another store, with a catalog on the local disk."""

    def __init__(self, folder: Path, emulator: Emulator) -> None:
        super().__init__(ICEBERG, folder)
        self.emulator = emulator

    @property
    def catalog(self) -> dict[str, str]:
        return super().catalog | self.emulator.iceberg


@pytest.mark.parametrize("store_name", EMULATORS)
def test_iceberg_tables_on_other_stores_have_each_row_once(store_name: str, tmp_path: Path) -> None:
    (tmp_path / "emulator").mkdir()
    with EMULATORS[store_name](tmp_path / "emulator") as emulator:
        each_row_comes_once(EmulatedLake(tmp_path / "lake", emulator), tmp_path)


@pytest.mark.parametrize(
    "path", ["abfss://lake@account.dfs.core.windows.net/orders", "gs://lake/o"]
)
def test_delta_tables_on_other_stores_are_rejected(path: str) -> None:
    with pytest.raises(ConfigError, match="delta_once"):
        lake_options(DELTA, {"path": path, "checkpointLocation": "/checkpoint"})
