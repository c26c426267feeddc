"""The snippets of the README, of the page on the tools, and of the page for users' tests run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import dedup.spark
from tests.support.processes import python

README = Path(__file__).parents[2] / "README.md"
#: For how long the reader looks on; the tests look until there is something to see.
LOOK = "query.awaitTermination(60)\nquery.stop()\n"
LOAD = 'option("rowsPerSecond", 1000)'
#: The listener logs a micro-batch before it reports it, so the first of two is reported.
UNTIL_SEEN = """
from pathlib import Path
from dedup.tools.watch.query_log import read_logs
while not Path("metrics").is_dir() or sum(
    batch.duplicate > 0 and batch.gc_lag_newest_ms is not None
    for log in read_logs("metrics")
    for _, batch in log.batches
) < 2:
    assert not query.awaitTermination(1)
"""
CHECK = "check orders/checkpoint --catalog orders/catalog --log metrics"


def snippets(language: str) -> list[str]:
    pages = (README, README.parent / "dedup/tools/README.md")
    text = "".join(page.read_text() for page in pages)
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return python(*arguments, cwd=folder, env={"PYSPARK_PYTHON": sys.executable})


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_python_examples_run(tmp_path: Path) -> None:
    """The first example, then those that build on it; the console shows every ID once."""
    parts = snippets("python")
    assert len(parts) >= 2
    example, *rest = parts
    # A listener that is added before the query starts sees its first micro-batch.
    start = example.index("query = ")
    assert example.endswith(LOOK)
    begun = example[start:].removesuffix(LOOK) + UNTIL_SEEN
    program = example[:start] + "\n".join(rest) + begun
    # The larger the load, the longer `dedup tune` measures what is best for it.
    assert LOAD in program
    program = program.replace(LOAD, LOAD.replace("1000", "10"))
    done = run(["-c", program], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "FutureWarning" not in done.stderr, "what workers print comes to the reader's screen"
    assert "Py4JException" not in done.stderr, "the listener leaves before Python is gone"
    ids = re.findall(r"\|(order-\d+)\|", done.stdout)
    assert ids
    assert len(ids) == len(set(ids))
    assert re.search(r"^\d+ [1-9]\d* \d+$", done.stdout, re.MULTILINE), "the listener reported"
    assert (tmp_path / "orders" / "catalog").is_dir()
    watch = ["-m", "dedup.cli.main", "watch", "metrics", "--json"]
    told = json.loads(run(watch, tmp_path).stdout)
    assert told["queries"][0]["last"]["records_in"] > 0
    assert told["status"] in ("OK", "STOPPED")
    assert re.search("^fine orders/checkpoint has no state yet", done.stdout, re.MULTILINE)
    assert "breaks the guarantee" not in done.stdout
    cli = ["-m", "dedup.cli.main"]
    looked = run([*cli, *CHECK.split(), "--json"], tmp_path)
    assert looked.returncode == 0, looked.stdout
    assert json.loads(looked.stdout)["query_id"] == told["queries"][0]["query_id"]
    tuned = run([*cli, "tune", "--log", "metrics", "--json"], tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    assert json.loads(tuned.stdout)["candidates"]


@pytest.mark.slow
def test_the_shell_examples_run(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    times = (f"2024-05-01 00:{i // 2:02}:00" for i in range(100))
    lines = ["order_id,ordered_at", *(f"o-{i % 40},{time}" for i, time in enumerate(times))]
    (tmp_path / "events" / "one.csv").write_text("\n".join(lines) + "\n")
    commands = [
        line for part in snippets("sh") for line in part.splitlines() if line.startswith("dedup ")
    ]
    assert commands
    for command in commands:
        done = run(["-m", "dedup.cli.main", *shlex.split(command)[1:]], tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
    unique = list((tmp_path / "unique").glob("batch=*/*.csv*"))
    assert unique


PAGES = [
    README,
    *(path for room in ("dedup", "benchmarks") for path in (README.parent / room).rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(README.parent)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    for link in re.findall(r"\]\((?!http)(.*?)\)", page.read_text()):
        assert not link.partition("#")[0] or (page.parent / link.partition("#")[0]).exists(), link


@pytest.mark.slow
def test_python_may_end_during_a_call_of_the_listener(tmp_path: Path) -> None:
    """Otherwise Spark prints an error with Java's stack."""
    code = """
import time
from pyspark.sql import SparkSession
from dedup import DedupListener, dedup_by_id
told = []
def slow(batch):
    told.append(batch)
    time.sleep(0.5)
builder = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", "1")
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
spark.streams.addListener(DedupListener(slow))
rows = spark.readStream.format("rate").load()
rows = rows.transform(dedup_by_id("value", horizon="1 hour", catalog="catalog"))
query = rows.writeStream.format("noop").option("checkpointLocation", "checkpoint").start()
while not told:
    assert not query.awaitTermination(0.05)
print("still told")
"""
    done = run(["-c", code], tmp_path)
    assert done.stdout.strip().endswith("still told"), done.stderr[-3000:]
    assert "Py4JException" not in done.stderr


PAGE = Path(dedup.spark.__file__).with_name("README.md")


@pytest.mark.parametrize("broken", [False, True])
def test_the_example_for_users_tests_passes_and_detects_a_lost_record(
    spark: SparkSession, tmp_path: Path, broken: bool
) -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (snippet,) = (snippet for snippet in snippets if "small_query" in snippet)
    names: dict[str, Any] = {}
    pipeline = "events.transform(operator)" + ".where(\"order_id != 'b'\")" * broken
    exec(snippet.replace("events.transform(operator)", pipeline), names)
    if not broken:
        names["test_every_order_goes_on_once"](spark, tmp_path)
        return
    with pytest.raises(AssertionError, match=r"^1 lost: 'b' \(0 came out, 1 should\)$"):
        names["test_every_order_goes_on_once"](spark, tmp_path)
