"""Arrow's types of types as DDL, for tests that start no Spark."""

from __future__ import annotations

import pyarrow as pa

#: The types in the tables of cli/VALUES.md that files of text may have.
TYPES = {
    "STRING": pa.string(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(),
    "BIGINT": pa.int64(), "DECIMAL(10,2)": pa.decimal128(10, 2),
    "DECIMAL(38,20)": pa.decimal128(38, 20), "FLOAT": pa.float32(), "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(), "DATE": pa.date32(), "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"), "BINARY": pa.binary(),
    "ARRAY<INT>": pa.list_(pa.int32()),
    "MAP<STRING, DECIMAL(3,1)>": pa.map_(pa.string(), pa.decimal128(3, 1)),
    "STRUCT<a: DATE, b: ARRAY<STRING>>": pa.struct(
        [("a", pa.date32()), ("b", pa.list_(pa.string()))]
    ),
}  # fmt: skip
