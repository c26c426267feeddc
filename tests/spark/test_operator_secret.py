"""A query's hash keys: from a secret that only its certificate holds, the same in every task."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dedup import dedup_by_id
from dedup.catalog.certificate import Certificate, load_certificate
from dedup.catalog.layout import certificate_path
from dedup.catalog.root import Root
from dedup.core.sharding import derive_keys, filter_key_id
from dedup.errors import cause
from dedup.spark.driver.build import Operator
from dedup.spark.driver.plans import plan_of, user_columns
from dedup.spark.options import Options
from dedup.spark.plan import Plan
from dedup.tools import explain, verify
from dedup.tools import inspect as inspect_catalog
from tests.support.spark_query import Query, seeded


def certificate(query: Query) -> Certificate:
    query_id = json.loads((query.checkpoint / "metadata").read_text())["id"]
    found = load_certificate(Root(query.catalog), query_id)
    assert found is not None
    return found


def put(query: Query, changed: Certificate) -> None:
    Root(query.catalog).put_bytes(certificate_path(changed.query_id), changed.to_bytes())


def refusal(query: Query) -> str:
    with pytest.raises(StreamingQueryException) as stopped:
        query.run()
    return str(cause(stopped.value))


@pytest.mark.slow
def test_keys_derive_from_a_secret_that_nothing_but_the_certificate_holds(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = {"timestamp": "ts", "horizon": "1 hour", "state_budget_bytes": 1 << 14}
    query = Query(spark, tmp_path, options)
    for table in seeded(batches=3, rows=900, ids=1200, step_s=60, spread_s=60):
        query.add_table(table)
    first = query.run()
    born = certificate(query)
    assert len(born.secret) == 16
    assert born.hash_key_id == filter_key_id(born.query_id, born.secret)
    assert born.hash_key_id != filter_key_id(born.query_id)
    ids = {row["id"] for row in first.all_rows()}
    query.add(*(f"{one}@150" for one in sorted(ids)[:50]))
    assert query.run().all_rows() == [], "the next start draws another secret, and heeds the first"
    assert certificate(query) == born
    assert verify(query.catalog).ok
    one = next(row for row in first.rows[0])
    told = explain(query.catalog, one["id"], checkpoint=query.checkpoint)
    assert [seen.time_ms for seen in told.seen]
    shown = [repr(born), json.dumps(inspect_catalog(query.catalog).to_json()), repr(told)]
    shown.append(repr(planned(query.source(), query)))
    files = [path for path in query.checkpoint.rglob("*") if path.is_file()]
    shown += [path.read_bytes().hex() for path in files]
    for text in shown:
        assert born.secret.hex() not in text
        assert repr(born.secret) not in text


def test_a_start_that_failed_in_its_first_micro_batch_leaves_its_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, {"horizon": "1 hour"}).add("a@1", "b@1")

    def fail(rows: object) -> list[object]:
        rows.collect()  # type: ignore[attr-defined]
        raise ArithmeticError("the sink is away")

    with pytest.raises(StreamingQueryException, match="the sink is away"):
        query.run(fail)
    born = certificate(query)
    assert sorted(row["id"] for row in query.add("a@2").run().all_rows()) == ["a", "b"]
    assert certificate(query) == born


@pytest.mark.slow
def test_a_certificate_with_another_secret_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """It was restored from a start that came to nothing, or from another query's copy."""
    query = Query(spark, tmp_path, {"horizon": "1 hour", "state_budget_bytes": 1 << 14})
    query.add_table(seeded(batches=1, rows=2000, ids=2000, step_s=1)[0])
    query.run()
    born = certificate(query)
    query.add("a@2")
    strange = replace(born, secret=bytes(16), hash_key_id=filter_key_id(born.query_id, bytes(16)))
    for changed in (strange, replace(born, secret=b"", hash_key_id=filter_key_id(born.query_id))):
        put(query, changed)
        told = refusal(query)
        assert "The catalog does not belong to this checkpoint" in told
        assert "dedup remedies missing-catalog" in told
        problems = [p for _, report in verify(query.catalog).segments for p in report.problems]
        assert any("restore that file from a copy first" in problem for problem in problems)
        assert not any("the segment is damaged" in problem for problem in problems)
    put(query, born)
    assert [row["id"] for row in query.run().all_rows()] == ["a"]


def test_batches_draw_keys_of_their_own_and_judge_alike(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, {"horizon": "1 hour"}).add("a@1", "a@1", "a@1", "b@1")
    rows = spark.read.schema(query.schema).parquet(str(query.input))
    operator = operator_of(query)
    found = [sorted((row.id, row.n) for row in operator(rows).collect()) for _ in range(3)]
    assert found[0] == found[1] == found[2], "the same of several copies goes on each time"
    plans = [planned(rows, query) for _ in range(2)]
    keys = {derive_keys("batch", plan.secret) for plan in plans} | {derive_keys("batch")}
    assert len(keys) == 3


def operator_of(query: Query) -> Operator[Options]:
    return dedup_by_id("id", catalog=str(query.catalog), **query.options)


def planned(rows: DataFrame, query: Query) -> Plan:
    options = operator_of(query).options
    return plan_of(user_columns(rows, options), options)
