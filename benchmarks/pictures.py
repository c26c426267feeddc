"""The pictures of the documentation, each of a real run: `make pictures`.

A query runs over made-up orders of four source partitions, one of them slow; `watch` and `check`
look at it, `tune` measures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
#: So many micro-batches, of two seconds each, are behind the query when it is looked at.
BATCHES = 50
WATCH, CHECK = ROOT / "dedup/tools/watch/watch.svg", ROOT / "dedup/cli/check.svg"
TUNE = ROOT / "dedup/tools/tuning/tune.svg"


def picture(path: Path, title: str, output: str, width: int) -> None:
    """What a command printed in colour, as it stands on a terminal."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=width, file=nowhere, force_terminal=True)
        for line in output.rstrip("\n").split("\n"):
            console.print(Text.from_ansi(line), soft_wrap=True)
        console.save_svg(str(path), title=title)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def dedup(*arguments: object, width: int = 80, height: int = 24) -> str:
    """What the command prints in colour on a terminal of that size."""
    environment = {
        **os.environ,
        "FORCE_COLOR": "1",
        "COLUMNS": str(width),
        "LINES": str(height),
        "TERM": "xterm-256color",
    }
    environment.pop("NO_COLOR", None)
    done = subprocess.run(
        [sys.executable, "-m", "dedup.cli.main", *map(str, arguments)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not done.stdout:
        raise SystemExit(done.stderr)
    return done.stdout


def query(folder: Path) -> Any:
    """Orders at 8,000 a second, every twentieth sent again within minutes; Spark's handle."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as fn

    from dedup import DedupListener, dedup_by_id

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    spark.streams.addListener(DedupListener(lambda batch: None, log=folder / "metrics"))
    value = fn.col("value")
    number = fn.when(value % 20 == 0, value - 40 * (value % 997) - 1).otherwise(value)
    partition = (value % 4).cast("int")
    slow = fn.when(partition == 3, fn.expr("INTERVAL 21 SECONDS")).otherwise(
        fn.expr("INTERVAL 0 SECONDS")
    )
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 8000).load()
    orders = ticks.select(
        fn.concat(fn.lit("order-"), fn.greatest(number, fn.lit(0))).alias("order_id"),
        (fn.col("timestamp") - slow).alias("at"),
        fn.lit("orders").alias("topic"),
        partition.alias("partition"),
    )
    unique = orders.transform(
        dedup_by_id(
            "order_id",
            horizon="1 minute",
            lateness="10 seconds",
            timestamp="at",
            source_partition=["topic", "partition"],
            catalog=str(folder / "catalog"),
            state_budget_bytes=1 << 17,
        )
    )
    return (
        unique.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .queryName("orders")
        .trigger(processingTime="2 seconds")
        .format("noop")
        .start()
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        running = query(folder)
        try:
            while (running.lastProgress or {"batchId": 0})["batchId"] < BATCHES:
                if not running.isActive:
                    raise SystemExit(str(running.exception()))
                time.sleep(1)
            shown = dedup("watch", folder / "metrics", "--once", width=100, height=42)
        finally:
            running.stop()
        picture(WATCH, "dedup watch metrics", shown, 100)
        settings = folder / "spark-defaults.conf"
        settings.write_text("spark.master local[8]\nspark.driver.memory 4g\n")
        looked_over = dedup(
            "check", folder / "checkpoint", "--catalog", folder / "catalog", "--log",
            folder / "metrics", "--properties", settings,
        )  # fmt: skip
        title = "dedup check checkpoint --catalog catalog --log metrics --properties ..."
        picture(CHECK, title, looked_over, 80)
        asked = ["--ids-per-day", "20M", "--horizon", "7 days", "--cores", "8", "--fpr", "0.1"]
        picture(TUNE, f"dedup tune {' '.join(asked)}", dedup("tune", *asked, width=100), 100)


if __name__ == "__main__":
    main()
