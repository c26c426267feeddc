"""The options of sinks against their pages, and what formats need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import datasource
from pyspark.sql.types import LongType, StructType

import dedup
from dedup import register, tools
from dedup.core.option import REQUIRED, Option
from dedup.errors import ConfigError, SinkError
from dedup.sinks.formats import check_sink
from dedup.sinks.kafka import options as kafka
from dedup.sinks.lakehouse import options as lakehouse
from dedup.sinks.mysql import options as mysql
from dedup.sinks.postgres import options as postgres

SINKS = Path(dedup.__file__).parent / "sinks"
DECLARED: dict[str, tuple[tuple[Option, ...], ...]] = {
    "kafka": (kafka.OPTIONS,),
    "lakehouse": tuple(lakehouse.OPTIONS.values()),
    "mysql": (mysql.OPTIONS,),
    "postgres": (postgres.OPTIONS,),
}


@pytest.mark.parametrize("sink", DECLARED)
def test_the_page_lists_every_option_with_its_default(sink: str) -> None:
    table = (SINKS / sink / "README.md").read_text().split("## Options\n\n")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `([a-z.]+)` \| ([^|]*)\|", table, re.MULTILINE))
    options = [option for group in DECLARED[sink] for option in group]
    assert set(rows) == {option.name for option in options}
    for option in options:
        if option.default not in (None, (), REQUIRED):
            shown = option.default if isinstance(option.default, str) else str(option.default)
            assert shown.lower() in rows[option.name], option.name


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
