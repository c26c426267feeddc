"""Decodes a column of bytes in tasks, by a user's function or by the decoder of a format."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError, SourceError
from dedup.errors.lazy import library
from dedup.sources.files.bypass import LeftToSpark, text_schema, text_types
from dedup.spark.plan import HELPER_PREFIX

#: Names of added columns. `FIELDS` holds the fields of a good record, and is null for a bad record.
#: `CAUSE` is the reason why a record is bad, and is null for a good record.
FIELDS, CAUSE = f"{HELPER_PREFIX}fields", f"{HELPER_PREFIX}cause"
#: The same for the record's key.
KEY_FIELDS, KEY_CAUSE = f"{HELPER_PREFIX}key_fields", f"{HELPER_PREFIX}key_cause"
_CAUSE_CHARS = 300
#: Number of bytes of keys or values that are decoded at a time.
_PIECE_BYTES = 2 << 20
_FLOAT = struct.Struct("f")
_NO_COLUMN = pa.ArrowException, OverflowError, TypeError, ValueError


def need_fastavro(purpose: str) -> None:
    """Raise MissingExtraError if fastavro is not installed."""
    library("kafka", purpose, "fastavro")


class Poison(Exception):
    """A value cannot be decoded. The text is the cause."""


class BytesDecoder(ABC):
    """Decodes bytes to values of one `type` of Arrow. It must pickle."""

    type: pa.DataType

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Return a value for Arrow, or raise Poison.

        Raises SourceError if it cannot decide. Then the query stops, and no record is poison.
        """

    def batches(
        self, batches: Iterable[pa.RecordBatch], column: str = "value"
    ) -> Iterator[pa.RecordBatch]:
        """Yield each batch with two more columns, `FIELDS` and `CAUSE`, decoded from `column`.

        Column ``value`` keeps the bytes of poison records, and becomes null in other rows if it is
        decoded.
        """
        for batch in (piece for whole in batches for piece in _pieces(whole, column)):
            data = batch.column(column)
            fields, causes = self.decoded(data.to_pylist())
            cause = pa.array(causes, pa.string())
            names, columns = batch.schema.names, list(batch.columns)
            if column == "value":
                is_good = pc.is_null(cause)
                if KEY_CAUSE in names:
                    is_good = pc.and_(is_good, pc.is_null(batch.column(KEY_CAUSE)))
                good = is_good.to_numpy(zero_copy_only=False)
                columns[names.index(column)] = data.take(pa.array(np.arange(len(data)), mask=good))
            yield pa.RecordBatch.from_arrays(
                [*columns, fields, cause], names=[*names, FIELDS, CAUSE]
            )

    def decoded(self, values: list[bytes | None]) -> tuple[pa.Array, list[str | None]]:
        """Return the values as a column, and for each one that is poison the cause."""
        records: list[Any] = []
        causes: list[str | None] = []
        for value in values:
            record, cause = None, None
            if value is not None:
                try:
                    record = self.decode(value)
                except Poison as poison:
                    cause = str(poison)
            records.append(record)
            causes.append(cause)
        return self._column(records, causes), causes

    def _column(self, records: list[Any], causes: list[str | None]) -> pa.Array:
        """Return records as a column. A record that does not fit becomes null and gets a cause."""
        kind = self.type
        with suppress(*_NO_COLUMN):
            return pa.array(records, kind)
        for index, record in enumerate(records):
            try:
                pa.array([record], kind)
            except _NO_COLUMN as error:
                records[index], which = None, _misfit(record, kind)
                causes[index] = f"A value does not fit its column{which}: {line_of(error)}."
        return pa.array(records, kind)


def _pieces(batch: pa.RecordBatch, column: str) -> Iterator[pa.RecordBatch]:
    """Divide a batch, so that memory is bounded for values of any length."""
    lengths = pc.binary_length(batch.column(column)).fill_null(0).to_numpy()
    blocks = np.cumsum(lengths, dtype=np.int64) // _PIECE_BYTES
    cuts = (np.flatnonzero(np.diff(blocks)) + 1).tolist()
    for begin, end in pairwise([0, *cuts, len(batch)]):
        yield batch.slice(begin, end - begin)


def _misfit(record: Any, kind: pa.DataType) -> str:
    """Return the name and value of the field that does not fit, if the record has fields."""
    for field in kind if isinstance(record, dict) else ():
        try:
            pa.array([record.get(field.name)], field.type)
        except _NO_COLUMN:
            return f" {field.name} ({record[field.name]!r:.80})"
    return ""


def fields_type(schema: T.StructType, owner: str) -> pa.StructType:
    """Return the Arrow type of fields. Raises ConfigError for a type that `owner` cannot fill."""
    try:
        (whole,) = text_schema(T.StructType([T.StructField(owner, schema)]))
    except LeftToSpark as error:
        raise ConfigError(
            f"The schema of {owner} cannot be used: {error}. Declare it STRING, which keeps all of "
            "a value, and convert it with Spark."
        ) from None
    return whole.type


def line_of(error: Exception) -> str:
    """Return an error's text as one line without a full stop, cut to a bearable length."""
    text = " ".join(str(error).split()).rstrip(".") or "the bytes end too early"
    return text if len(text) <= _CAUSE_CHARS else f"{text[:_CAUSE_CHARS]}..."


#: The Python types of values of these types of Spark.
_PYTHON: dict[type[T.DataType], tuple[type, ...]] = {
    T.BooleanType: (bool,),
    **dict.fromkeys((T.ByteType, T.ShortType, T.IntegerType, T.LongType), (int,)),
    **dict.fromkeys((T.FloatType, T.DoubleType), (float, int)),
    T.DecimalType: (Decimal, int),
    T.StringType: (str,),
    T.BinaryType: (bytes, bytearray),
    T.DateType: (date,),
    **dict.fromkeys((T.TimestampType, T.TimestampNTZType), (datetime,)),
}


class FunctionDecoder(BytesDecoder):
    """Decodes by a user's function from bytes to a dict or Row with the fields of `schema`."""

    def __init__(self, function: Callable[[bytes], Any], schema: T.StructType) -> None:
        self._function, self._schema = function, text_types(schema)
        self.type = fields_type(schema, "Decoder")

    def decode(self, data: bytes) -> Any:
        try:
            value = self._function(data)
        except SourceError:
            raise
        except Exception as error:  # the user's function may raise any
            raise Poison(f"The function raised {type(error).__name__}: {line_of(error)}.") from None
        try:
            return _checked(value, self._schema, "")
        except TypeError as error:
            raise Poison(f"{error}.") from None
        except Exception as error:  # objects that the function returns may raise any as well
            raise Poison(f"Its result raised {type(error).__name__}: {line_of(error)}.") from None


def _checked(value: Any, kind: T.DataType, path: str, nullable: bool = True) -> Any:
    """Return an equal value that Arrow does not change to fit. Raises TypeError if none is."""
    if value is None and path:
        if not nullable:
            raise TypeError(f"Field {path.lstrip('.')} is missing or null, and the schema needs it")
        return None
    allowed = _PYTHON.get(type(kind), ())
    if type(value) in allowed and type(value) is not datetime and type(kind) is not T.FloatType:
        return value  # as most values
    if isinstance(kind, T.StructType):
        got = value.asDict() if isinstance(value, Row) else value
        if not isinstance(got, Mapping):
            raise _unfit(value, path, "a dict or a Row")
        return {
            f.name: _checked(got.get(f.name), f.dataType, f"{path}.{f.name}", f.nullable)
            for f in kind.fields
        }
    if isinstance(kind, T.ArrayType):
        if not isinstance(value, (list, tuple)) or isinstance(value, Row):
            raise _unfit(value, path, "a list")
        return [_checked(one, kind.elementType, f"{path}[]", kind.containsNull) for one in value]
    if isinstance(kind, T.MapType):
        if not isinstance(value, Mapping):
            raise _unfit(value, path, "a dict")
        has_null, path = kind.valueContainsNull, f"{path}[]"
        keys = (_checked(key, kind.keyType, path, False) for key in value)
        values = (_checked(each, kind.valueType, path, has_null) for each in value.values())
        return list(zip(keys, values, strict=True))
    # A bool is an int as well. A datetime is a date, and Arrow would cut its time of day.
    is_other = any(isinstance(value, one) and one not in allowed for one in (bool, datetime))
    if is_other or not isinstance(value, allowed):
        raise _unfit(value, path, " or ".join(one.__name__ for one in allowed))
    if isinstance(value, datetime):
        has_zone = value.tzinfo is not None and value.utcoffset() is not None
        if has_zone != isinstance(kind, T.TimestampType):
            raise _unfit(value, path, f"a datetime with{'out' if has_zone else ''} a time zone")
    exact = _exact(value, kind)
    if exact is None:
        name = kind.simpleString().upper()
        raise TypeError(
            f"Field {path.lstrip('.')} is {value!r:.80}, which {name} cannot hold exactly"
        )
    return exact


def _exact(value: Any, kind: T.DataType) -> Any:
    """Return an equal value that Arrow converts exactly, or None if Arrow would cut or round."""
    with suppress(ArithmeticError, NotImplementedError, ValueError, struct.error):
        if isinstance(kind, T.FloatType):
            single = _FLOAT.unpack(_FLOAT.pack(value))[0]
            return single if single == value or value != value else None
        if not isinstance(value, datetime):
            return value
        # A Timestamp of pandas may have nanoseconds, no time at all, or a long year.
        plain = datetime.combine(value.date(), value.timetz())
        if plain == value:  # Arrow would cut a fraction of a second from the offset
            return plain if value.tzinfo is None else plain.astimezone(UTC)
    return None


def _unfit(value: Any, path: str, wanted: str) -> TypeError:
    what = f"Field {path.lstrip('.')}" if path else "The function's result"
    return TypeError(f"{what} is {type(value).__name__}, and must be {wanted}")
