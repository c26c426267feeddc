"""A new checkpoint beside another query's catalog: it may replace a lost one."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from dedup.catalog.certificate import Certificate
from dedup.catalog.compatibility import create_or_check
from dedup.catalog.similar_queries import SimilarQuery, similar_queries
from dedup.cli.watch_screen import screen
from dedup.spark.executor.layout import warn_of_others
from dedup.storage.root import Root
from tests.support.batch_metrics import batch, watched
from tests.support.catalog import certificate

OWN, LAST, EARLIER = "own", "6f9619ff-8b86-4d01-b42d-00cf4fc964ff", "earlier"
DAY_S = 86_400


def born(root: Root, query_id: str, columns: tuple[tuple[str, str], ...]) -> Certificate:
    made = certificate(query_id, shards=1, id_columns=columns, encoding="utf8-v1")
    return create_or_check(root, made)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(tmp_path)
    order = (("order_id", "string"),)
    for query_id, day in ((OWN, 9), (EARLIER, 1), (LAST, 2)):
        born(root, query_id, order)
        os.utime(tmp_path / query_id / "certificate.json", (day * DAY_S, day * DAY_S))
    root.create_bytes(f"{LAST}/runs/000000000000-r.through-000000000007", b"")
    os.utime(tmp_path / LAST / "runs/000000000000-r.through-000000000007", (3 * DAY_S, 3 * DAY_S))
    born(root, "other-type", (("order_id", "bigint"),))
    born(root, "other-column", (("id", "string"),))
    root.put_bytes("damaged/certificate.json", b"{}")
    root.put_bytes("starts/some", b"")
    root.put_bytes("not a query/x", b"")
    return root


def test_queries_with_the_same_id_are_found(root: Root) -> None:
    columns = (("order_id", "string"),)
    alike = [SimilarQuery(LAST, 3 * DAY_S * 1000), SimilarQuery(EARLIER, DAY_S * 1000)]
    assert similar_queries(root, columns, OWN) == alike
    assert {other.query_id for other in similar_queries(root, columns)} == {OWN, LAST, EARLIER}
    assert similar_queries(root, (("nobody's", "string"),)) == []


def test_a_warning_names_the_other_query_and_the_adopt_command(
    root: Root, caplog: pytest.LogCaptureFixture
) -> None:
    assert warn_of_others(root, OWN) == 2
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    text = told.getMessage()
    assert text.startswith("A query with a new checkpoint knows no IDs. At ")
    assert f"query {LAST}, whose record ID has the same columns (order_id)" in text
    assert "which last wrote there on 1970-01-04 00:00:00 UTC (1 more have them too)" in text
    assert f"dedup catalog adopt {root.url()} --query {LAST} --checkpoint NEW" in text
    caplog.clear()
    assert warn_of_others(root, "other-type") == 0
    assert warn_of_others(root, "no-certificate") == 0
    assert not caplog.records


def test_a_root_that_cannot_be_listed_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert warn_of_others(Root(tmp_path / "file"), OWN) == 0


def test_watch_reports_that_the_checkpoint_may_replace_a_lost_one() -> None:
    def shown(others: int) -> str:
        batches = [(1000 * n, batch(n, other_queries=0 if n else others)) for n in range(3)]
        lines = screen([watched(batches, 3000)])
        return " ".join("\n".join(line.plain for line in lines).split())

    assert "replaces a lost one: dedup remedies lost-checkpoint" in shown(1)
    assert "lost" not in shown(0)
