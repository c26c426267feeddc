"""RecordShape of the rows that a sink is given, as records of Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.errors import ConfigError, DataError
from dedup.sinks.kafka.options import SinkOptions
from dedup.sinks.utf8 import check_utf8, only_utf8

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
#: Columns that become part of a record, and what each is read as. Spark's own sink takes the same,
#: but for ``timestamp``; as there, other columns are left alone.
TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.int64(),
}
#: librdkafka's ``message.max.bytes``, where nobody gave it.
MAX_BYTES = 1_000_000
#: Names of topics.
_TOPIC = r"^[a-zA-Z0-9._-]{1,249}$"
_NO_TOPIC = "its topic is no valid name (up to 249 letters, digits, dots, underscores and hyphens)"
_WANTED = {
    "key": "STRING or BINARY",
    "value": "STRING or BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "topic": "STRING",
    "partition": "INT",
    "timestamp": "TIMESTAMP",
}


@dataclass(frozen=True, slots=True)
class RecordShape:
    """Which columns of the input become records.

    Parameters
    ----------
    names : tuple of str
        In the order of `TYPES`.
    max_bytes : int
        Of key and value of a record together.
    """

    names: tuple[str, ...]
    max_bytes: int

    def records(self, rows: pa.RecordBatch, first_row: int = 0) -> pa.RecordBatch:
        """Return rows with these columns alone, in the types of `TYPES`.

        Parameters
        ----------
        rows : RecordBatch
        first_row : int
            Rows of the slice before these, for the error.

        Raises
        ------
        DataError
            If Kafka cannot take a record: its topic is null or no name of one, its partition
            negative, its timestamp not after 1970-01-01, a header null or without a key, or it is
            too large.
        """
        lower = {name.lower(): index for index, name in enumerate(rows.schema.names)}
        arrays = [_normal(name, rows.column(lower[name])) for name in self.names]
        schema = pa.schema([(name, TYPES[name]) for name in self.names])
        records = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if not {"topic", "headers"}.isdisjoint(self.names):
            with only_utf8("Kafka, as a topic or as the key of a header,"):
                check_utf8(records)
        _check(records, first_row)
        if "headers" in self.names:
            _check_headers(records, first_row)
        _check_sizes(records, first_row, self.max_bytes)
        return records


def record_shape(schema: Sequence[tuple[str, str]], options: SinkOptions) -> RecordShape:
    """Return the columns that become records, after a check of their types.

    Parameters
    ----------
    schema : sequence of (str, str)
        Names and Spark's simple type names.
    options : SinkOptions

    Raises
    ------
    ConfigError
        If ``value`` is missing or there twice, nothing says the topic, or a type does not fit.
    """
    types = {name.lower(): kind for name, kind in schema}
    names = [name for name in TYPES if name in types]
    if "topic" in names and options.topic is not None:
        names.remove("topic")
    if "value" not in names:
        raise ConfigError(
            "The sink needs a column `value` (STRING or BINARY), and the columns are "
            f"{', '.join(types)}: rename one, or pack several, for example with to_json."
        )
    if options.topic is None and "topic" not in names:
        raise ConfigError("Nothing says the topic: give the option topic, or a column `topic`.")
    for name in names:
        if [other.lower() for other, _ in schema].count(name) > 1:
            raise ConfigError(f"Two columns are named `{name}`: drop or rename one of them.")
        if types[name] not in _accepted(name):
            raise ConfigError(
                f"Column `{name}` is {types[name]}, and must be {_WANTED[name]}: cast it, or "
                "rename it if it is no part of the record."
            )
    return RecordShape(tuple(names), options.clients.whole("message.max.bytes", MAX_BYTES))


def _accepted(name: str) -> tuple[str, ...]:
    return {
        "headers": ("array<struct<key:string,value:binary>>",),
        "topic": ("string",),
        "partition": ("int", "smallint", "tinyint"),
        "timestamp": ("timestamp", "timestamp_ntz"),
    }.get(name, ("string", "binary"))


def _normal(name: str, column: pa.Array) -> pa.Array:
    if name == "timestamp":
        # Kafka's are whole milliseconds, rounded down, also before 1970.
        return _floor_ms(column)
    return column if column.type == TYPES[name] else column.cast(TYPES[name])


def _floor_ms(times: pa.Array) -> pa.Array:
    micros = times.cast(pa.timestamp("us", times.type.tz)).view(pa.int64())
    values = np.floor_divide(micros.fill_null(0).to_numpy(zero_copy_only=False), 1000)
    return pa.array(values, pa.int64(), mask=np.asarray(pc.is_null(times)))


def _check(records: pa.RecordBatch, first_row: int) -> None:
    for name, wrong, why in (
        ("topic", pc.is_null, "its topic is null, and no option topic is given"),
        ("topic", lambda c: pc.invert(pc.match_substring_regex(c, _TOPIC)), _NO_TOPIC),
        ("partition", lambda c: pc.less(c, 0), "its partition is negative"),
        ("timestamp", lambda c: pc.less_equal(c, 0), "its timestamp is not after 1970-01-01"),
    ):
        if name in records.schema.names:
            found = pc.fill_null(wrong(records.column(name)), False)
            if pc.any(found).as_py():
                row = pc.index(found, True).as_py()
                raise DataError(f"{_describe(records, row, first_row)} cannot be written: {why}.")


def _check_headers(records: pa.RecordBatch, first_row: int) -> None:
    headers = records.column("headers")
    keys = headers.flatten().flatten()[0]  # null for a null header, too
    wrong = pc.or_(pc.is_null(keys), pc.fill_null(pc.match_substring(keys, "\0"), False))
    if pc.any(wrong).as_py():
        row = pc.list_parent_indices(headers).filter(wrong)[0].as_py()
        raise DataError(
            f"{_describe(records, row, first_row)} cannot be written: a header is null, or its key "
            "is null or has a NUL character. Give each header a key, or leave it out "
            "(filter(headers, h -> h.key is not null)). Nothing of its slice was published."
        )


def _check_sizes(records: pa.RecordBatch, first_row: int, max_bytes: int) -> None:
    sizes = np.zeros(records.num_rows, np.int64)
    for name in ("key", "value"):
        if name in records.schema.names:
            lengths = pc.fill_null(pc.binary_length(records.column(name)), 0)
            sizes += lengths.to_numpy(zero_copy_only=False)
    if len(sizes) and sizes.max() > max_bytes:
        row = int(sizes.argmax())
        raise DataError(
            f"{_describe(records, row, first_row)} of {sizes[row]:,} bytes is larger than the "
            f"producer takes ({max_bytes:,}): raise kafka.message.max.bytes, and max.message.bytes "
            "of the topic, or make the record smaller. Nothing of its slice was published."
        )


def _describe(records: pa.RecordBatch, row: int, first_row: int) -> str:
    parts = [f"row {first_row + row}"]
    names = records.schema.names
    for name in ("topic", "partition", "key"):
        if name in names and (value := records.column(name)[row].as_py()) is not None:
            parts.append(f"{name} {value[:64] if isinstance(value, (bytes, str)) else value!r}")
    return f"A record ({', '.join(parts)})"
