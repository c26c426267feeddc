"""`dedup explain`: every ID that was let through is found, with its time and its place."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession
from typer.testing import CliRunner

from dedup.catalog.root import Root
from dedup.cli.app import app
from dedup.cli.failures import CANNOT_TELL, USAGE
from dedup.tools import explain
from dedup.tools.repair.opening import read_checkpoint
from tests.support.small_state import query, tables
from tests.support.spark_query import BASE


def test_ids_are_found_where_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """IDs of the last micro-batches, some in segments and some in state, and no others."""
    made = query(spark, tmp_path, tables(5))
    run = made.run()
    root = Root(made.catalog)
    known = read_checkpoint(root, str(made.checkpoint), spark)
    places = set()
    last = run.metrics[-1].late_watermark_ms
    assert last is not None
    rows = [row for batch in (3, 4) for row in run.rows[batch] if row["verdict"] == "unique"]
    for row in rows[:: len(rows) // 15]:
        told = explain(root, [row["id"]], known)
        body = told.to_json()
        at = BASE.timestamp() + row["at"]
        found = [s for s in body["seen"] if _seconds(s["at"]) == at]
        assert len(found) == 1, (row, body)
        assert _seconds(found[0]["bucket_start"]) <= at < _seconds(found[0]["bucket_end"])
        assert told.status == "remembered"
        places.add(found[0]["where"] == "Spark state")
    assert places == {True, False}
    never = explain(root, ["never seen"], known)
    assert (never.seen, never.status) == ((), "not remembered")
    # The copy at the root knows what is in segments.
    some = next(s for state in known.states.values() for s in state.manifest.segments())
    assert some.count
    the_command(str(made.catalog))


def the_command(root: str) -> None:
    """Without the checkpoint: what the catalog alone can tell."""
    done = CliRunner().invoke(app, ["explain", root, "never seen"])
    assert done.exit_code == CANNOT_TELL
    assert "id=never seen: not known from the catalog alone\n" in done.stdout
    assert "which --checkpoint DIR reads" in done.stdout
    done = CliRunner().invoke(app, ["explain", root, "a", "b", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["error"]) == (USAGE, "ConfigError")
    done = CliRunner().invoke(app, ["explain", root, "a", "--query", "other"])
    assert done.exit_code == USAGE


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()
