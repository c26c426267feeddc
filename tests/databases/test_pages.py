"""The snippets of a sink's page run, as a reader meets them, in one program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.databases.database import Database
from tests.support.pages import ORDERS, TO_THE_END, snippets
from tests.support.processes import python

COLUMNS = "order_id text, amount numeric, placed_at timestamptz"
#: Tables that the snippets of PostgreSQL write to, besides the one of the first.
TABLES = (
    *(f"CREATE TABLE {table} ({COLUMNS})" for table in ("orders_again", "orders_once")),
    *(f"CREATE TABLE {table} ({COLUMNS}, verdict text)"
      for table in ("order_copies", "late_orders")),
    "CREATE TABLE hourly_orders (hour timestamptz PRIMARY KEY, orders bigint)",
)  # fmt: skip


@pytest.mark.slow
def test_the_page_runs(db: Database, tmp_path: Path) -> None:
    first, *others = snippets(f"sinks/{db.name}/README.md")
    assert len(others) == db.own(postgres=3, mysql=1)
    if db.name == "postgres":
        db.run(*TABLES)
    # The first example runs at every start of the job.
    program = "".join([ORDERS, first, "query.stop()\n", first, *others, TO_THE_END])
    address = db.own(
        postgres="postgresql://localhost/shop",
        mysql='{"host": "localhost", "user": "shop", "database": "shop"}',
    )
    assert address in program
    mine = db.address["dsn"] if db.name == "postgres" else repr(db.where)  # type: ignore[attr-defined]
    done = python("-c", program.replace(address, mine), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = [(f"o{n}",) for n in range(6)]
    assert db.run("SELECT order_id FROM orders ORDER BY 1") == expected
    assert len(db.run("SELECT * FROM orders_again")) == 7
    if db.name == "postgres":
        assert db.run("SELECT order_id FROM orders_once ORDER BY 1") == expected
        hours = db.run("SELECT extract(epoch FROM hour)::bigint, orders FROM hourly_orders")
        assert hours == [(1_714_564_800, 7)]
        assert db.run("SELECT order_id FROM order_copies") == [("o3",)]
