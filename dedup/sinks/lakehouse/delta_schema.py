"""What Delta Lake says of a table, in its own JSON: columns, features, statistics of a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from dedup.errors import ConfigError, DataError
from dedup.sinks.lakehouse.columns import NotWritten, TableColumn
from dedup.sinks.lakehouse.spark_types import SparkType, spark_type

if TYPE_CHECKING:
    from deltalake import DeltaTable

_SCALARS: dict[str, tuple[str, pa.DataType]] = {
    "boolean": ("boolean", pa.bool_()),
    "byte": ("tinyint", pa.int8()),
    "short": ("smallint", pa.int16()),
    "integer": ("int", pa.int32()),
    "long": ("bigint", pa.int64()),
    "float": ("float", pa.float32()),
    "double": ("double", pa.float64()),
    "string": ("string", pa.string()),
    "binary": ("binary", pa.binary()),
    "date": ("date", pa.date32()),
    "timestamp": ("timestamp", pa.timestamp("us", "UTC")),
    "timestamp_ntz": ("timestamp_ntz", pa.timestamp("us")),
}
_NAMES = {spark: delta for delta, (spark, _) in _SCALARS.items()}
#: Features that ask nothing of who adds rows, or nothing that is not looked at below.
_KNOWN_FEATURES = frozenset({
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns",
    "timestampNtz", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck", "variantType",
})  # fmt: skip
#: What the description of a column, also of one inside a structure, stands for.
_ON_COLUMNS = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generated column",
    "delta.identity.start": "an identity column",
}
#: Property of a table after which its markers would be gone.
RETENTION = "delta.setTransactionRetentionDuration"
#: In the description of a ``varchar(n)``.
_LONGEST = "__CHAR_VARCHAR_TYPE_STRING"


def columns_of(table: DeltaTable) -> list[TableColumn]:
    """Return the columns of a table."""
    return [_column(one) for one in json.loads(table.schema().to_json())["fields"]]


def refuse_features(shown: str, table: DeltaTable) -> None:
    """Refuse a table that asks more of its writers than this sink does.

    Raises
    ------
    ConfigError
        Naming the feature.
    """
    features = set(table.protocol().writer_features or ())
    if other := sorted(features - _KNOWN_FEATURES):
        raise ConfigError(
            f"Table {shown} has features that this sink does not write: {', '.join(other)}. Drop "
            "them (ALTER TABLE ... DROP FEATURE), or write with Spark's own connector and "
            "dedup.delta_once."
        )
    settings = table.metadata().configuration
    if RETENTION in settings:
        raise ConfigError(
            f"Table {shown} forgets application transactions after {settings[RETENTION]}, and this "
            "sink keeps in them what it has published: it would write a micro-batch a second time. "
            f"ALTER TABLE ... UNSET TBLPROPERTIES ('{RETENTION}'), and start the query again."
        )
    mapped = settings.get("delta.columnMapping.mode", "none") != "none"
    checks = sorted(name for name in settings if name.startswith("delta.constraints."))
    schema = table.schema().to_json()
    for has, what in (
        *((f'"{key}"' in schema, what) for key, what in _ON_COLUMNS.items()),
        (mapped, "column mapping"),
        (bool(checks), f"the constraint {', '.join(c.split('.')[-1] for c in checks)}"),
        (settings.get("delta.enableRowTracking") == "true", "row tracking"),
        (settings.get("delta.enableInCommitTimestamps") == "true", "in-commit timestamps"),
    ):
        if has:
            raise ConfigError(
                f"Table {shown} has {what}, which this sink does not write. Write with Spark's own "
                "connector and dedup.delta_once."
            )


def _column(one: dict[str, Any]) -> TableColumn:
    unsuitable = ""
    if _LONGEST in (one.get("metadata") or {}):
        unsuitable = "the table gives it a longest length, which this sink does not look for"
    try:
        kind, arrow = _type(one["type"])
    except NotWritten as error:
        kind, arrow, unsuitable = str(error), pa.null(), f"its type there is {error}"
    return TableColumn(one["name"], kind, arrow, not one.get("nullable", True), unsuitable)


def _type(told: Any) -> tuple[str, pa.DataType]:
    """Return Spark's name of a type and Arrow's type of it."""
    if isinstance(told, str):
        if told in _SCALARS:
            return _SCALARS[told]
        if told.startswith("decimal("):
            digits, scale = (int(part) for part in told[8:-1].split(","))
            return f"decimal({digits},{scale})", pa.decimal128(digits, scale)
        raise NotWritten(told)
    if told["type"] == "array":
        kind, arrow = _inner(told["elementType"], told["containsNull"])
        return f"array<{kind}>", pa.list_(pa.field("element", arrow))
    if told["type"] == "map":
        key, key_arrow = _type(told["keyType"])
        kind, arrow = _inner(told["valueType"], told["valueContainsNull"])
        return f"map<{key},{kind}>", pa.map_(key_arrow, arrow)
    if told["type"] == "struct":
        names, fields = [], []
        for one in told["fields"]:
            kind, arrow = _inner(one["type"], one.get("nullable", True))
            names.append(f"{one['name']}:{kind}")
            fields.append(pa.field(one["name"], arrow))
        return f"struct<{','.join(names)}>", pa.struct(fields)
    raise NotWritten(str(told["type"]))


def _inner(told: Any, is_nullable: bool) -> tuple[str, pa.DataType]:
    if not is_nullable:
        raise NotWritten("nested and requires a value, which this sink does not look for")
    return _type(told)


def schema_json(stream: Sequence[tuple[str, str]]) -> str:
    """Return Delta's description of a table with the columns of a stream.

    Parameters
    ----------
    stream : sequence of (str, str)
        Names and Spark's types.

    Raises
    ------
    ConfigError
        Naming a column of a type that Delta does not have, or that this sink does not write.
    """
    fields = [
        {"name": name, "type": _told(spark_type(kind)), "nullable": True, "metadata": {}}
        for name, kind in stream
    ]
    for one in fields:
        column = _column(one)
        if column.unsuitable:
            raise ConfigError(f"Column {column.name!r} cannot be created: {column.unsuitable}.")
    return json.dumps({"type": "struct", "fields": fields})


def _told(kind: SparkType) -> Any:
    inner = [(name, _told(each)) for name, each in kind.inner]
    if kind.name == "array":
        return {"type": "array", "elementType": inner[0][1], "containsNull": True}
    if kind.name == "map":
        key, value = inner[0][1], inner[1][1]
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if kind.name == "struct":
        fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in inner]
        return {"type": "struct", "fields": fields}
    return _NAMES.get(kind.name, kind.name)


def partition_text(shown: str, name: str, value: Any) -> str | None:
    """Return the value of a partition as Delta's protocol writes it."""
    if value is None:
        return None
    if value == "":
        raise DataError(
            f"Table {shown} is divided by column {name!r}, and a record has an empty text in it, "
            "which Delta Lake cannot tell from no value. Nothing of its micro-batch is in the "
            "table. Let the query give it another value, or none."
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def stats_of(file: pq.FileMetaData) -> str:
    """Return the statistics of a file as Delta's protocol has them: rows and nulls, and no bounds.

    Of a file that has bounds for some columns delta-rs (1.6) takes the others for bounded by null,
    and passes by its rows where one asks for those (`DeltaTable.to_pyarrow_dataset`). There are
    columns without: a long text, times, numbers that are none.
    """
    nulls: dict[str, int] = {}
    for number in range(file.num_columns):
        path = file.schema.column(number).path
        if "." in path:
            continue  # nested, or a name that looks like it
        chunks = [file.row_group(n).column(number).statistics for n in range(file.num_row_groups)]
        if all(chunk is not None and chunk.has_null_count for chunk in chunks):
            nulls[path] = sum(chunk.null_count for chunk in chunks)
    return json.dumps({"numRecords": file.num_rows, "nullCount": nulls})
