"""Formats of sinks: which PySpark has them, and what a server that is away means."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import datasource
from pyspark.sql.types import LongType, StructType

from dedup import register, tools
from dedup.errors import ConfigError, SinkError
from dedup.sinks.formats import check_sink


def test_formats_need_a_pyspark_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check_query` does not approve what cannot be registered."""
    monkeypatch.delattr(datasource, "DataSourceStreamArrowWriter")
    session: Any = None
    with pytest.raises(ConfigError, match=r"4\.1 or newer\. Use writeStream\.foreachBatch"):
        register(session)
    sink = ("dedup_files", {"path": "/x"})
    with pytest.raises(ConfigError, match=r"4\.1 or newer\. Use writeStream\.foreachBatch"):
        check_sink(sink, StructType().add("n", LongType()), "/c")


def test_an_inspection_without_a_server_is_an_error_of_the_sink() -> None:
    options = {
        "dsn": "host=127.0.0.1 port=9 dbname=d user=u connect_timeout=2", "table": "t",
        "checkpointLocation": "/no/checkpoint", "timeout.seconds": "1",
    }  # fmt: skip
    with pytest.raises((SinkError, ConfigError), match=r"127\.0\.0\.1|checkpoint"):
        tools.inspect_format("dedup_postgres", options)
