"""Notebooks: the tutorial in a real kernel, and what `live` prints outside of one."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import dedup
from dedup import tools
from tests.support.processes import python
from tests.support.spark_query import Query, finish
from tests.support.waiting import wait_until

TUTORIAL = Path(dedup.__file__).parent / "tutorial.ipynb"
#: The last cell stops the query, which the panel shows in its last look.
UNTIL_SHOWN = """
import threading
for thread in threading.enumerate():
    if thread.name == "dedup-live":
        thread.join(60)
"""
EXECUTE = """
import sys, nbclient, nbformat
tutorial, last_cell, done = sys.argv[1:]
notebook = nbformat.read(tutorial, as_version=4)
notebook.cells.append(nbformat.v4.new_code_cell(last_cell))
nbformat.write(nbclient.NotebookClient(notebook, timeout=240).execute(), done)
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The cells of code, with their outputs."""
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    folder = tmp_path_factory.mktemp("tutorial")
    # In another process, because a client of kernels leaves sockets and threads.
    done = python("-c", EXECUTE, TUTORIAL, UNTIL_SHOWN, folder / "done.ipynb", cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    notebook = nbformat.read(folder / "done.ipynb", as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == "code"][:-1]


def shown(cell: Any, kind: str) -> str:
    """What a notebook shows of a cell: results of one kind, and what is printed."""
    printed = [each.text for each in cell.outputs if each.get("name") == "stdout"]
    return "\n".join(printed + [each.data[kind] for each in cell.outputs if "data" in each])


def test_the_tutorial_has_ten_cells_and_shows_every_order_once(cells: list[Any]) -> None:
    assert len(cells) == 10
    given, unique, replayed = (shown(cells[number], "text/plain") for number in (1, 5, 6))
    assert "|   5000|  4600|" in given
    assert "|   4600|  4600|" in unique
    assert replayed == "4600"


def test_a_notebook_shows_checks_metrics_and_a_panel(cells: list[Any]) -> None:
    checks, panel, metrics = (shown(cells[number], "text/html") for number in (2, 4, 7))
    assert "<td>FINE</td><td>checkpoint</td>" in checks
    assert "<td>records_in</td><td>1,000</td>" in metrics
    verdict, *batches = re.findall(r"<p>.*</p>|<tr><td>\d", panel)
    assert verdict == "<p><b>STOPPED</b> unique_orders: the run has ended</p>"
    assert [row[-1] for row in batches] == ["5", "4", "3", "2", "1", "0"]


def test_a_notebook_shows_an_error_in_a_few_lines(cells: list[Any]) -> None:
    (error,) = cells[8].outputs
    assert len("\n".join(error.traceback).splitlines()) < 8
    assert error.traceback[-1].startswith("ConfigError: horizon='7 dayz' is not a duration")


def test_live_prints_a_line_for_each_micro_batch_and_the_end(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It needs no listener, and finds the metrics under any name. It works after the end too."""
    query = Query(spark, tmp_path, {"timestamp": "ts", "horizon": "1 day", "metrics": "orders"})
    query.add("a@0", "b@0", "a@1").add("b@5", "c@5")
    running = query.writer().queryName("orders").format("noop").start()
    finish(running)
    tools.live(running)
    first, second, end = capsys.readouterr().out.splitlines()
    assert first.startswith("orders: batch 0: 3 in, 2 unique, 1 duplicate, 0 late, GC lag ")
    assert second.startswith("orders: batch 1: 2 in, 1 unique, 1 duplicate, 0 late, GC lag ")
    assert end == "orders: STOPPED: the run has ended"


def test_a_program_that_waits_for_a_query_prints_its_last_micro_batch_and_its_end(
    tmp_path: Path,
) -> None:
    code = (
        "import sys; from pathlib import Path; from pyspark.sql import SparkSession\n"
        "from dedup import tools; from tests.support.spark_query import Query\n"
        "spark = SparkSession.builder.master('local[2]').getOrCreate()\n"
        "query = Query(spark, Path(sys.argv[1]), {'timestamp': 'ts', 'horizon': '1 day'})\n"
        "query.add('a@0').add('b@0')\n"
        "running = query.writer().queryName('orders').format('noop').start()\n"
        "tools.live(running)\nrunning.awaitTermination()\n"
    )
    done = python("-c", code, tmp_path, env={"PYSPARK_PYTHON": sys.executable})
    assert done.returncode == 0, done.stderr
    first, second, end = done.stdout.splitlines()
    assert first.startswith("orders: batch 0: 1 in, 1 unique")
    assert second.startswith("orders: batch 1: 1 in, 1 unique")
    assert end == "orders: STOPPED: the run has ended"


def test_live_follows_a_query_in_the_background_until_it_fails(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed: list[str] = []
    returned = Event()

    def lines() -> int:
        printed.extend(capsys.readouterr().out.splitlines())
        return len(printed)

    def fail_at_the_second(rows: DataFrame, batch_id: int) -> None:
        rows.count()
        if batch_id:
            wait_until(lambda: lines() == 1)
            assert returned.wait(60), "it does not wait for the query"
            raise ValueError("the disk is full")

    query = Query(spark, tmp_path, {"timestamp": "ts", "horizon": "1 day"}).add("a@0").add("b@0")
    running = query.writer().foreachBatch(fail_at_the_second).start()
    tools.live(running)
    returned.set()
    with pytest.raises(StreamingQueryException):
        running.awaitTermination()
    assert wait_until(lambda: lines() == 2)
    assert "batch 0: 1 in, 1 unique" in printed[0]
    assert "STOPPED: ValueError: the disk is full" in printed[1]
