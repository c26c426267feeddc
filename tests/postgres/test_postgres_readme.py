"""The snippets of the sink's page run, as a reader meets them, in one program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres.tables import run
from tests.support.pages import ORDERS, TO_THE_END, snippets
from tests.support.processes import python


@pytest.mark.slow
def test_the_page_runs(dsn: str, tmp_path: Path) -> None:
    first, *others = snippets("sinks/postgres/README.md")
    assert len(others) == 3
    columns = "order_id text, amount numeric, placed_at timestamptz"
    for table in ("orders_again", "orders_once"):
        run(dsn, f"CREATE TABLE {table} ({columns})")
    for table in ("order_copies", "late_orders"):
        run(dsn, f"CREATE TABLE {table} ({columns}, verdict text)")
    run(dsn, "CREATE TABLE hourly_orders (hour timestamptz PRIMARY KEY, orders bigint)")
    # The first example runs at every start of the job.
    program = "".join([ORDERS, first, "query.stop()\n", first, *others, TO_THE_END])
    program = program.replace("postgresql://localhost/shop", dsn)
    done = python("-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = [(f"o{n}",) for n in range(6)]
    for table in ("orders", "orders_once"):
        assert run(dsn, f"SELECT order_id FROM {table} ORDER BY 1") == expected
    assert len(run(dsn, "SELECT * FROM orders_again")) == 7
    hours = run(dsn, "SELECT extract(epoch FROM hour)::bigint, orders FROM hourly_orders")
    assert hours == [(1_714_564_800, 7)]
    assert run(dsn, "SELECT order_id FROM order_copies") == [("o3",)]
