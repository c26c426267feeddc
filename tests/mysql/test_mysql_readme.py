"""The snippets of the sink's page run, as a reader meets them, in one program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mysql.tables import Where, run
from tests.support.pages import ORDERS, TO_THE_END, snippets
from tests.support.processes import python


@pytest.mark.slow
def test_the_page_runs(where: Where, tmp_path: Path) -> None:
    first, *others = snippets("sinks/mysql/README.md")
    assert len(others) == 1
    # The first example runs at every start of the job.
    program = "".join([ORDERS, first, "query.stop()\n", first, *others, TO_THE_END])
    address = '{"host": "localhost", "user": "shop", "database": "shop"}'
    assert address in program
    done = python("-c", program.replace(address, repr(where)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = [(f"o{n}",) for n in range(6)]
    assert run(where, "SELECT order_id FROM orders ORDER BY 1") == expected
    assert len(run(where, "SELECT * FROM orders_again")) == 7
