"""Which jars of Spark's Kafka connector are for which Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pyspark
import pytest

import dedup
from dedup.errors import ConfigError
from dedup.sources.kafka.connector import JARS, kafka_packages


@pytest.mark.parametrize(
    ("spark", "connector"),
    [
        ("3.5.9", "2.12:3.5.7"), ("4.0.5", "2.13:4.0.0"), ("4.1.4", "2.13:4.1.3"),
        ("4.2.1", "2.13:4.2.0"), ("4.3.0.dev0", "2.13:4.2.0"),
    ],
)  # fmt: skip
def test_each_spark_release_gets_the_matching_connector_jars(spark: str, connector: str) -> None:
    found = kafka_packages(spark)
    assert found[0] == f"org.apache.spark:spark-sql-kafka-0-10_{connector}"
    assert [name.split(":")[1].partition("_")[0] for name in found] == [
        "spark-sql-kafka-0-10", "spark-token-provider-kafka-0-10", "kafka-clients", "commons-pool2",
    ]  # fmt: skip


def test_the_default_is_the_installed_pyspark() -> None:
    assert kafka_packages() == kafka_packages(pyspark.__version__)


def test_the_page_has_the_same_versions() -> None:
    page = (Path(dedup.__file__).parent / "sources/kafka/README.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in page.splitlines()
        if re.match(r"\| [34]\.\d", line)
    ]
    told = {line: tuple(jars) for lines, *jars in rows for line in lines.split(", ")}
    assert told == {
        line: tuple(name.split(":")[2] for name in names) for line, names in JARS.items()
    }


@pytest.mark.parametrize("spark", ["3.4.4", "4.10.0", "5.0.0", "main"])
def test_an_unsupported_spark_is_rejected_with_the_supported_releases(spark: str) -> None:
    with pytest.raises(ConfigError, match=f"for Spark {spark}, only for {', '.join(JARS)}"):
        kafka_packages(spark)
