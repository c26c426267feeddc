"""Catalogs on emulators of Azure Blob Storage and Google Cloud Storage, and on a gateway for S3.

Azurite has no hierarchical namespace, so nothing here shows anything for Data Lake Storage Gen2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dedup.storage.root import Root
from dedup.testing import faults
from tests.cluster.store_operations import READS, WRITES, Case, World
from tests.support.emulators import EMULATORS, Emulator
from tests.support.oracle import Oracle
from tests.support.processes import python
from tests.support.small_state import HORIZON_S, LATENESS_S, query, tables, total
from tests.support.spark_query import Run

STEPS = ("segment.put.after", "sidecar.put.before", "upload.after", "view.build.before")


@pytest.fixture(scope="module", params=EMULATORS)
def emulator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Emulator]:
    with EMULATORS[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


def test_objects_are_written_read_listed_copied_and_deleted(emulator: Emulator) -> None:
    root = Root(emulator("objects"))
    assert (root.list(), root.folders()) == ((), ())
    root.put_bytes("top", b"x")
    for name in ("q/a", "q/shard=00000/b", "r/c"):
        assert root.create_bytes(name, name.encode())
        assert not root.create_bytes(name, b"another")
        assert root.read_bytes(name) == name.encode()
    assert root.folders() == ("q", "r")
    root.put_bytes("q/a", b"new")
    root.copy("q/a", "q/copy")
    assert root.read_bytes("q/copy") == b"new"
    assert [file.name for file in root.list("q")] == ["q/a", "q/copy", "q/shard=00000/b"]
    assert root.delete(["q/a", "q/a", "r/c"]) == 2
    root.delete_folder("q")
    assert [file.name for file in root.list()] == ["top"]


@pytest.mark.parametrize("operation", [*WRITES, *READS], ids=lambda one: one.__name__)
def test_each_operation_of_the_catalog_gives_its_answer(
    emulator: Emulator, tmp_path: Path, operation: Callable[[World], Case]
) -> None:
    root = Root(emulator(tmp_path.name))
    case = operation(World(tmp_path, root, root))
    assert case.act() == case.answer
    assert case.always()


@pytest.mark.slow
def test_a_query_whose_workers_are_killed_is_right(
    spark: SparkSession, emulator: Emulator, fault_folder: Path, tmp_path: Path
) -> None:
    given, run = tables(1 + len(STEPS)), Run()
    made = query(spark, tmp_path, given[:1], catalog=emulator(tmp_path.name))
    for step, table in zip(("", *STEPS), given, strict=True):
        if step:
            made.add_table(table)
            faults.arm(fault_folder, step, "kill")
        again = made.run()
        run.rows |= again.rows
        run.metrics += again.metrics
    assert len(faults.fired(fault_folder)) == len(STEPS)
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
    assert total(run, "segments_written") > 0
    assert total(run, "filter_true_positive") > 0


def test_a_key_that_azure_cannot_use_is_an_error_and_does_not_end_the_process() -> None:
    code = (
        "from dedup.storage.root import Root\nfrom tests.support.emulators import Azure\n"
        "Root(Azure('127.0.0.1:1', 'bad!')('q')).read_bytes('a')"
    )
    done = python("-c", code)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1, done.stderr
    assert "The catalog function failed" in done.stderr
    assert "Unexpected character in Base64 encoded string" in done.stderr, last
