"""The options of sinks against their pages, and what formats need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import datasource
from pyspark.sql import types as T  # noqa: N812

import dedup
from dedup import register, tools
from dedup.errors import ConfigError, SinkError
from dedup.sinks import WriteAheadSink, custom_sink
from dedup.sinks.formats import prepared_sink, sink_kinds
from dedup.sinks.kafka import options as kafka
from dedup.sinks.lakehouse import options as lakehouse
from dedup.sinks.mysql import options as mysql
from dedup.sinks.postgres import options as postgres
from dedup.values.option import REQUIRED, Option

SINKS = Path(dedup.__file__).parent / "sinks"
DECLARED: dict[str, tuple[tuple[Option, ...], ...]] = {
    "kafka": (kafka.OPTIONS,),
    "lakehouse": tuple(lakehouse.OPTIONS.values()),
    "mysql": (mysql.OPTIONS,),
    "postgres": (postgres.OPTIONS,),
}

#: Options of a sink of each format.
GIVEN = {
    "dedup_kafka": {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"},
    "dedup_postgres": {"dsn": "host=127.0.0.1 port=9", "table": "t"},
    "dedup_mysql": {"mysql.host": "127.0.0.1", "mysql.port": "9", "table": "t"},
    "dedup_files": {"path": "/nowhere"},
    "dedup_delta": {"path": "/nowhere"},
    "dedup_iceberg": {"table": "a.b", "catalog.type": "in-memory"},
}  # fmt: skip


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
        prepared_sink(sink, T.StructType().add("n", T.LongType()), "/c")


class Nowhere(WriteAheadSink):
    """A user's sink."""

    def send(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    "kind",
    [T.YearMonthIntervalType(), T.CalendarIntervalType(), T.NullType(),
     T.ArrayType(T.YearMonthIntervalType(0, 0)), T.StructType().add("a", T.NullType()),
     T.MapType(T.LongType(), T.CalendarIntervalType())],
    ids=lambda kind: kind.simpleString(),
)  # fmt: skip
@pytest.mark.parametrize("sink", ["custom", *sink_kinds()])
def test_no_sink_takes_a_column_that_spark_cannot_pass_to_python(
    sink: str, kind: T.DataType, tmp_path: Path
) -> None:
    """The column alone decides, without a server. Kafka's sink ignores other columns."""
    made: object = sink, GIVEN.get(sink)
    if sink == "custom":
        made = custom_sink(Nowhere(), checkpoint=str(tmp_path))
    columns = T.StructType().add("value", T.StringType()).add("c", kind)
    with pytest.raises(ConfigError) as refused:
        prepared_sink(made, columns, tmp_path)
    assert f"Column 'c' is {kind.simpleString()}, which Spark cannot pass" in str(refused.value)


def test_an_inspection_without_a_server_is_an_error_of_the_sink() -> None:
    options = {
        "dsn": "host=127.0.0.1 port=9 dbname=d user=u connect_timeout=2", "table": "t",
        "checkpointLocation": "/no/checkpoint", "timeout.seconds": "1",
    }  # fmt: skip
    with pytest.raises((SinkError, ConfigError), match=r"127\.0\.0\.1|checkpoint"):
        tools.inspect_output("dedup_postgres", options)
