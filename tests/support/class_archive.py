"""Spark's Java classes in a form that every JVM of the tests maps into its memory (JEP 350).

To load and check them takes each JVM five seconds of processor time. The archive is made once on a
machine, by a small query that ends as an archive asks for, in the background of the first whole
run. Java passes over an archive that is missing or belongs to another Java or Spark.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from tests.support.quick_spark import QUICK_JAVA

_SET = zlib.crc32(f"{sys.prefix} {version('pyspark')} {os.environ.get('JAVA_HOME')}".encode())
FILE = Path(tempfile.gettempdir()) / f"dedup-test-classes-{_SET:08x}.jsa"
_MAKING = FILE.with_suffix(".making")
_MAKING_S = 600
#: Java would print what it thinks of an archive.
OPTIONS = f"{QUICK_JAVA} -XX:SharedArchiveFile={FILE} -Xlog:disable"
_QUERY = """
import sys
from contextlib import suppress
from pyspark.sql import SparkSession, functions as F
folder = sys.argv[1]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
rows = spark.range(9).mapInArrow(lambda batches: batches, "id long")
rows.groupBy((F.col("id") % 3).alias("id")).count().write.parquet(f"{folder}/rows")
stream = spark.readStream.schema("id long, count long").parquet(f"{folder}/rows")
writer = stream.dropDuplicates(["id"]).writeStream.trigger(availableNow=True)
query = writer.option("checkpointLocation", f"{folder}/checkpoint").format("noop").start()
query.awaitTermination()
with suppress(Exception):  # Java is gone before it can answer
    spark._jvm.java.lang.System.exit(0)
spark.sparkContext._gateway.proc.wait()
"""


def make_in_background() -> None:
    """Begin to make the archive, where there is none and nobody else makes it."""
    with suppress(OSError):
        if _MAKING.exists() and time.time() - _MAKING.stat().st_mtime > _MAKING_S:
            _MAKING.unlink()  # whoever made it was killed
    with suppress(FileExistsError):
        if not FILE.exists():
            _MAKING.touch(exist_ok=False)
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.class_archive"],
                cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip


def main() -> None:
    made = FILE.with_suffix(".part")
    own = {
        "SPARK_SUBMIT_OPTS": f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={made}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    try:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", _QUERY, folder]
            subprocess.run(command, env=os.environ | own, check=True, timeout=300)
        made.rename(FILE)
    finally:
        _MAKING.unlink()


if __name__ == "__main__":
    main()
