"""A disk runs full under a query, and is freed again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.support.needs import long
from tests.support.oracle import Oracle
from tests.support.small_disk import fill, small_disk
from tests.support.small_state import HORIZON_S, LATENESS_S, query, tables


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder


@pytest.mark.parametrize("where", ["catalog", long("cache_dir")])
@pytest.mark.slow
def test_a_query_stops_and_goes_on(
    spark: SparkSession, tmp_path: Path, disk: Path, where: str
) -> None:
    given = tables(5, rows=1200)
    made = query(spark, tmp_path / "query", given[:2], **{where: str(disk / "here")})
    if where == "catalog":
        made.catalog = disk / "here"
    run = made.run()
    ballast = fill(disk)
    for table in given[2:]:
        made.add_table(table)
    with pytest.raises(StreamingQueryException, match=r"CatalogError.*No space left on device"):
        made.run()
    ballast.unlink()
    run.rows |= made.run().rows
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
