"""The snippets of the sinks' page run, as a reader meets them, in one program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import ORDERS, TO_THE_END, snippets
from tests.support.processes import python

_LOOK = """
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
found = {}
for name in ("orders", "orders_once"):
    found[name] = DeltaTable(f"lake/{name}").to_pyarrow_table()
lake = load_catalog(
    "default", type="sql", uri="sqlite:///lake/catalog.db", warehouse="lake/warehouse"
)
for name in ("orders", "copies"):
    found[f"shop.{name}"] = lake.load_table(f"shop.{name}").scan().to_arrow()
print({name: sorted(rows["order_id"].to_pylist()) for name, rows in found.items()})
"""


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    parts = snippets("sinks/lakehouse/README.md")
    assert len(parts) == 3
    done = python("-c", "".join([ORDERS, *parts, TO_THE_END, _LOOK]), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    once = [f"o{n}" for n in range(6)]
    everything = sorted([*once, "o3"])
    assert done.stdout.splitlines()[-1] == str({
        "orders": everything, "orders_once": once, "shop.orders": everything, "shop.copies": ["o3"]
    })  # fmt: skip
