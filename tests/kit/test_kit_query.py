"""The page of the sink kit runs, and a query into a user's sink survives a replay."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.pages import ORDERS, TO_THE_END, snippets
from tests.support.processes import python

#: Spark forgets that it committed its last micro-batch, and the program starts again.
REPLAY = """
import glob
import os
for entry in glob.glob("orders/checkpoint/commits/*0*") + ["orders/checkpoint/commits/.0.crc"]:
    os.remove(entry)
"""


@pytest.mark.parametrize("parallel", ["False", pytest.param("True", marks=pytest.mark.slow)])
def test_the_page_runs(tmp_path: Path, parallel: str) -> None:
    """The class lives in the user's program, and must reach the tasks from there."""
    sink, query = snippets("sinks/kit/README.md")[:2]
    sink = sink.replace("    def __init__", f"    parallel = {parallel}\n\n    def __init__", 1)
    with closing(sqlite3.connect(tmp_path / "orders.db")) as db:
        db.execute("CREATE TABLE orders (order_id, amount)")
    program = "".join([ORDERS, sink, query, TO_THE_END, REPLAY, query, TO_THE_END])
    done = python("-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    with closing(sqlite3.connect(tmp_path / "orders.db")) as db:
        found = db.execute("SELECT order_id, amount FROM orders ORDER BY 1, 2").fetchall()
    assert found == sorted([(f"o{n}", n * 1.5) for n in range(6)] + [("o3", 4.5)])


def test_column_names_with_dots_and_backticks_are_kept(tmp_path: Path) -> None:
    """Spark would read a dot as a field of a struct, and a backtick as the end of a name."""
    sink, query = snippets("sinks/kit/README.md")[:2]
    query = query.replace('"order_id", "double(amount)"', '"order_id AS `a.b`", "amount AS `a``b`"')
    names = "values = [(name, 0) for name in rows.schema.names]"
    sink = sink.replace("values = zip(*(column.to_pylist() for column in rows.columns))", names)
    with closing(sqlite3.connect(tmp_path / "orders.db")) as db:
        db.execute("CREATE TABLE orders (name, zero)")
    done = python("-c", "".join([ORDERS, sink, query, TO_THE_END]), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    with closing(sqlite3.connect(tmp_path / "orders.db")) as db:
        assert db.execute("SELECT name FROM orders").fetchall() == [("a.b",), ("a`b",)]
