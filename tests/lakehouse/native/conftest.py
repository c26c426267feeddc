"""A session with Delta Lake's and Iceberg's own connectors, for the PySpark that has both.

`make test-lakehouse` runs these tests; where PySpark is another one they are not collected.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.support.jars import alone, maven_jars
from tests.support.quick_spark import INTERPRETED_PLANS, QUICK_JAVA

WANTED = (
    "io.delta:delta-spark_4.1_2.13:4.4.0",
    alone("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"),
    alone("org.xerial:sqlite-jdbc:3.46.1.3"),
)
collect_ignore_glob = [] if version("pyspark").startswith("4.1.") else ["test_*.py"]

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the catalog of Iceberg's is, which Spark calls ``lake``, and its tables."""
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def spark(warehouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    jars = ",".join(str(path) for path in maven_jars(WANTED).glob("*.jar"))
    scratch = tmp_path_factory.mktemp("spark")
    extensions = (
        "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    )
    settings = {
        **INTERPRETED_PLANS,
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1500m",
        "spark.jars": jars,
        "spark.log.level": "OFF",
        "spark.local.dir": str(scratch / "local"),
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{warehouse}/catalog.db",
        "spark.sql.catalog.lake.warehouse": f"file://{warehouse}/warehouse",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.extensions": extensions,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("dedup tests")
    session = builder.config(map={**settings}).getOrCreate()
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.shop")
    yield session
    session.stop()
